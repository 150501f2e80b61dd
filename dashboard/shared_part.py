"""What a look is written as: a part of a page that fifty tabs refresh is rendered once for all who may see the same.

Rendering took three times as long as asking the database: twenty tabs of the overview are one of it a second now. The
token against forged requests is each reader's own, and put in at last.
"""

import math
import secrets
from collections.abc import Callable, Hashable
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import get_token
from django.template.loader import render_to_string
from django.utils.translation import get_language

from dashboard import prefetch, shared_look
from tasks.panels import Look

# Nobody can write it into a task's name: it is of this process alone, and never sent.
TOKEN_STANDS_HERE = secrets.token_urlsafe(32)

Context = Callable[[HttpRequest], dict[str, Any]]


def answer(request: HttpRequest, template: str, context: Context, *, every: float) -> HttpResponse:
    """The part of the latest look as this person may see it; `context` gathers it, for all with the same rights.

    `every`: after so many seconds the tab will ask again.
    """
    key, look = key_of(request, template), shared_look.of(request)

    def make(request: HttpRequest, look: Look, good_since: float = math.inf) -> str:
        return look.made(key, lambda: rendered(request, template, context), good_since=good_since)

    # What is about to be made is not made twice: for a moment the last one is good enough.
    good_since = shared_look.since() if prefetch.will_make(key) else math.inf
    text = make(request, look, good_since)
    prefetch.note(key, request, look if look.has_made(key) else None, make, every)
    return completed(request, text)


def answer_of(request: HttpRequest, look: Look, template: str, context: Context) -> HttpResponse:
    """The same of a look of its own."""
    return completed(request, look.made(key_of(request, template), lambda: rendered(request, template, context)))


def key_of(request: HttpRequest, template: str) -> Hashable:
    """What two tabs have in common that see the same."""
    return template, request.get_full_path(), get_language(), rights_of(request.user)


def rendered(request: HttpRequest, template: str, context: Context) -> str:
    return render_to_string(template, {**context(request), "csrf_token": TOKEN_STANDS_HERE}, request)


def completed(request: HttpRequest, text: str) -> HttpResponse:
    """The part with this reader's token."""
    if TOKEN_STANDS_HERE in text:
        text = text.replace(TOKEN_STANDS_HERE, get_token(request))
    return HttpResponse(text)


def rights_of(user: Any) -> frozenset[str] | None:
    """What tells two readers apart: their rights; None has them all."""
    return None if user.is_superuser else frozenset(user.get_all_permissions())
