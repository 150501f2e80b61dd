"""What a look is written as: a part of a page that fifty tabs refresh is rendered once for all who may see the same.

Rendering took three times as long as asking the database: twenty tabs of the overview are one of it a second now. The
token against forged requests is each reader's own, and put in at last.
"""

import secrets
from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import get_token
from django.template.loader import render_to_string
from django.utils.translation import get_language

from tasks.panels import Look

# Nobody can write it into a task's name: it is of this process alone, and never sent.
TOKEN_STANDS_HERE = secrets.token_urlsafe(32)


def answer(
    request: HttpRequest, look: Look, template: str, context: Callable[[HttpRequest], dict[str, Any]]
) -> HttpResponse:
    """The part as this person may see it; `context` gathers it from the look, for all with the same rights."""
    key = (template, request.get_full_path(), get_language(), rights_of(request.user))

    def render() -> str:
        return render_to_string(template, {**context(request), "csrf_token": TOKEN_STANDS_HERE}, request)

    text = look.made(key, render)
    if TOKEN_STANDS_HERE in text:
        text = text.replace(TOKEN_STANDS_HERE, get_token(request))
    return HttpResponse(text)


def rights_of(user: Any) -> frozenset[str] | None:
    """What tells two readers apart: their rights; None has them all."""
    return None if user.is_superuser else frozenset(user.get_all_permissions())
