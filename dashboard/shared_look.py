"""One computation serves all tabs: everybody who asks within a second gets the same look at the system.

One for each process of the web server, of which there are few; a look keeps facts, never words in somebody's language.
"""

import threading
import time

from django.conf import settings
from django.http import HttpRequest

from tasks.panels import Look

BUSY_SHARE = 10

_guard = threading.Lock()
_looks: dict[str, Look] = {}


def of(request: HttpRequest) -> Look:
    """The look that this request has begun with: its page, its navigation and its panels tell the same moment."""
    if not hasattr(request, "rowlock_look"):
        request.rowlock_look = current()  # type: ignore[attr-defined]
    look: Look = request.rowlock_look  # type: ignore[attr-defined]
    return look


def forget() -> None:
    """After a change by a person: the page that answers must not show the moment before it."""
    with _guard:
        _looks.pop("now", None)


def current(name: str = "now", seconds: float | None = None) -> Look:
    """The look of this name, at most so old (None: SHARED_LOOK_SECONDS, whose 0 turns all sharing off).

    One that took long is kept longer, so that however slow the database is, a process spends no more than a tenth of
    its time in looking.
    """
    limit = settings.SHARED_LOOK_SECONDS if seconds is None else seconds * bool(settings.SHARED_LOOK_SECONDS)
    with _guard:
        look = _looks.get(name)
        if look is None or is_over(look, limit):
            former, look = look, Look(before=look)
            _looks[name] = look
            if former:
                former.before = None  # or every look there ever was would stay
        return look


def is_over(look: Look, limit: float) -> bool:
    """Whether a look is too old."""
    rest = look.busy_seconds * BUSY_SHARE if limit else 0.0
    return time.monotonic() - look.began >= max(limit, rest)
