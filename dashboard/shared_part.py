"""What a look is written as: a part of a page that fifty tabs refresh is rendered once for all who may see the same.

Rendering took three times as long as asking the database: twenty tabs of the overview are one of it a second now. The
token against forged requests is each reader's own, and put in at last.
"""

import copy
import math
import secrets
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import get_token
from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.utils.translation import get_language

from dashboard import prefetch, shared_look
from dashboard.prefetch import Prefetched
from tasks.panels import Look

# Nobody can write it into a task's name: it is of this process alone, and never sent.
TOKEN_STANDS_HERE = secrets.token_urlsafe(32)

Context = Callable[[HttpRequest], dict[str, Any]]


@dataclass(frozen=True)
class SharedPart:
    """A part of a page that asks for it anew every so many seconds.

    `context` gathers it, for all with the same rights. `is_apart`: it asks the database for itself, perhaps for long,
    so it has a look of its own, good enough for so many `seconds` (None: as the shared one), and no other part waits
    for it.
    """

    template: str
    context: Context
    every: float
    is_apart: bool = False
    seconds: float | None = None

    def answer(self, request: HttpRequest) -> HttpResponse:
        """The part for a tab that refreshes it."""
        return HttpResponse(self.text(request))

    def text(self, request: HttpRequest) -> SafeString:
        """The part of the latest look as this person may see it, who will ask (again) for it."""
        key = key_of(request, self.template)
        if self.is_apart:
            look = shared_look.current(key, self.seconds, grace=shared_look.GRACE)
        else:
            look = shared_look.of(request)
        # What is about to be made is not made twice: for a moment the last one is good enough for a tab.
        is_tab = "HX-Request" in request.headers
        good_since = shared_look.since() if is_tab and prefetch.will_make(key) else math.inf
        text = self.made(request, look, good_since)
        prefetch.note(key, self.prefetched(key, request), look if look.has_made(key) else None)
        return completed(request, text)

    def expect(self, request: HttpRequest) -> None:
        """This person gets a page that was not made of it, which will ask for it: it is made by then."""
        key = key_of(request, self.template)
        prefetch.note(key, self.prefetched(key, request))

    def prefetched(self, key: Hashable, request: HttpRequest) -> Prefetched:
        name = key if self.is_apart else shared_look.EVERYTHING
        return Prefetched(name, self.every, self.made, as_of_htmx(request), get_language(), self.seconds)

    def made(self, request: HttpRequest, look: Look, good_since: float = math.inf) -> str:
        """What is written of this look, and kept in it."""

        def make() -> str:
            asked = copy.copy(request)
            shared_look.give(asked, look)
            return render_to_string(self.template, {**self.context(asked), "csrf_token": TOKEN_STANDS_HERE}, asked)

        return look.made(key_of(request, self.template), make, good_since=good_since)


def as_of_htmx(request: HttpRequest) -> HttpRequest:
    """The request with which a page that is being opened will ask for its part."""
    if "HX-Request" in request.headers:
        return request
    asked = copy.copy(request)
    asked.META = {**request.META, "HTTP_HX_REQUEST": "true"}
    vars(asked).pop("headers", None)  # read from the other META
    return asked


def key_of(request: HttpRequest, template: str) -> Hashable:
    """What two tabs have in common that see the same."""
    return template, request.get_full_path(), get_language(), rights_of(request.user)


def completed(request: HttpRequest, text: str) -> SafeString:
    """The part with this reader's token; safe as the templates have made it."""
    if TOKEN_STANDS_HERE in text:
        text = text.replace(TOKEN_STANDS_HERE, get_token(request))
    return SafeString(text)  # nosec B703


def rights_of(user: Any) -> frozenset[str] | None:
    """What tells two readers apart: their rights; None has them all."""
    return None if user.is_superuser else frozenset(user.get_all_permissions())
