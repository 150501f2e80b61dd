"""Render a live fragment once and share it with everyone who may see the same.

Rendering took three times as long as the queries: now twenty tabs of the overview cost one rendering a second. Each
reader's own CSRF token is inserted last.
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

from dashboard.live import prefetch, snapshots
from dashboard.live.prefetch import Prefetched
from tasks.panels import Snapshot
from tasks.support import addresses

# Random for each process and never sent, so nobody can put it into a task's name.
TOKEN_STANDS_HERE = secrets.token_urlsafe(32)

Context = Callable[[HttpRequest], dict[str, Any]]


@dataclass(frozen=True)
class SharedPart:
    """A fragment of a page that refreshes every `every` seconds.

    `context` gathers its data, the same for everyone with the same rights. `is_apart`: its queries may be slow, so it
    has a snapshot of its own, valid for `seconds` (None: as the shared one). No other fragment waits for it.
    """

    template: str
    context: Context
    every: float
    is_apart: bool = False
    seconds: float | None = None

    def answer(self, request: HttpRequest) -> HttpResponse:
        """The fragment, for a tab that refreshes it."""
        return HttpResponse(self.text(request))

    def text(self, request: HttpRequest) -> SafeString:
        """The latest fragment that this person may see; also schedules the tab's next request."""
        key = key_of(request, self.template)
        apart = snapshots.current(key, self.seconds, grace=snapshots.GRACE) if self.is_apart else None
        snapshot = apart or snapshots.of(request)
        # If the fragment is about to be renewed, a tab gets the previous one for a moment.
        is_tab = "HX-Request" in request.headers
        good_since = snapshots.since() if is_tab and prefetch.will_make(key) else math.inf
        text = self.made(request, snapshot, good_since)
        prefetch.note(key, self.prefetched(key, request), snapshot if snapshot.has_made(key) else None)
        return completed(request, text)

    def expect(self, request: HttpRequest) -> None:
        """Have the fragment made in time for a page that will ask for it."""
        key = key_of(request, self.template)
        prefetch.note(key, self.prefetched(key, request))

    def prefetched(self, key: Hashable, request: HttpRequest) -> Prefetched:
        name = key if self.is_apart else snapshots.EVERYTHING
        return Prefetched(name, self.every, self.made, as_of_htmx(request), get_language(), self.seconds)

    def made(self, request: HttpRequest, snapshot: Snapshot, good_since: float = math.inf) -> str:
        """Render the fragment of this snapshot, once."""

        def make() -> str:
            asked = copy.copy(request)
            snapshots.give(asked, snapshot)
            addresses.stand_at(getattr(request, "current_app", addresses.site()))  # another thread may make it
            return render_to_string(self.template, {**self.context(asked), "csrf_token": TOKEN_STANDS_HERE}, asked)

        return snapshot.made(key_of(request, self.template), make, good_since=good_since)


def as_of_htmx(request: HttpRequest) -> HttpRequest:
    """The request that an opened page will send for its fragment."""
    if "HX-Request" in request.headers:
        return request
    asked = copy.copy(request)
    asked.META = {**request.META, "HTTP_HX_REQUEST": "true"}
    vars(asked).pop("headers", None)  # cached from the other META
    return asked


def key_of(request: HttpRequest, template: str) -> Hashable:
    """The key that tabs share if they see the same."""
    return template, request.get_full_path(), get_language(), rights_of(request.user)


def completed(request: HttpRequest, text: str) -> SafeString:
    """Insert this reader's CSRF token; the text is safe because templates rendered it."""
    if TOKEN_STANDS_HERE in text:
        text = text.replace(TOKEN_STANDS_HERE, get_token(request))
    return SafeString(text)  # nosec B703


def rights_of(user: Any) -> frozenset[str] | None:
    """The rights by which fragments differ; None for a superuser."""
    return None if user.is_superuser else frozenset(user.get_all_permissions())
