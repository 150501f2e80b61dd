"""One computation serves all tabs: everybody who asks within a second gets the same look at the system.

One for each process of the web server, of which there are few; a look keeps facts, never words in somebody's language.
"""

import math
import threading
import time
from collections.abc import Hashable
from typing import NamedTuple

from django.conf import settings
from django.http import HttpRequest

from tasks.panels import STANDS_IN_SECONDS, Look

BUSY_SHARE = 10
# Whoever asks takes a look that is a little too old: its successor is about to be made (dashboard/prefetch.py).
GRACE = 1.5
EVERYTHING = "everything"  # the look that pages, navigation and most parts share; others are of one question each
MOST_LOOKS = 50

_guard = threading.Lock()
_looks: dict[Hashable, Look] = {}  # the newest stand last


def of(request: HttpRequest) -> Look:
    """The look that this request has begun with: its page, its navigation and its panels tell the same moment."""
    if not hasattr(request, "rowlock_look"):
        give(request, current(grace=GRACE))
    look: Look = request.rowlock_look  # type: ignore[attr-defined]
    return look


def give(request: HttpRequest, look: Look) -> None:
    """Let this request tell of that look."""
    request.rowlock_look = look  # type: ignore[attr-defined]


def forget() -> None:
    """After a change by a person: the page that answers must not show the moment before it."""
    with _guard:
        _looks.clear()


class Latest(NamedTuple):
    """The look that there is, if any: when it is to be renewed, and until when it is given to who asks."""

    look: Look | None
    ends: float  # both by `time.monotonic()`
    serves_until: float


def latest(name: Hashable = EVERYTHING, seconds: float | None = None) -> Latest:
    """The look of this name, as it is now; `seconds` as below."""
    limit = limit_of(seconds)
    with _guard:
        look = _looks.get(name)
    if look is None:
        return Latest(None, -math.inf, -math.inf)
    return Latest(look, ends(look, limit), ends(look, limit * GRACE))


def since() -> float:
    """Looks that began earlier are too old to stand in for one that is about to be made; by `time.monotonic()`."""
    return time.monotonic() - 2 * float(settings.SHARED_LOOK_SECONDS)


def current(name: Hashable = EVERYTHING, seconds: float | None = None, *, grace: float = 1.0) -> Look:
    """The look of this name, at most so old (None: SHARED_LOOK_SECONDS, whose 0 turns all sharing off).

    One that took long is kept longer, so that however slow the database is, a process spends no more than a tenth of
    its time in looking. `grace`: it may be so many times as old.
    """
    limit = limit_of(seconds)
    with _guard:
        look = _looks.get(name)
        if look is None or time.monotonic() >= ends(look, limit * grace):
            former, look = _looks.pop(name, None), Look(is_first=look is None)
            _looks[name] = look
            if len(_looks) > MOST_LOOKS:
                del _looks[next(iter(_looks))]
            if former:
                former.before = None  # or every look there ever was would stay
                if look.began - ends(former, limit) < STANDS_IN_SECONDS:
                    look.before = former
        return look


def limit_of(seconds: float | None) -> float:
    """How long a look of so many seconds is good enough as the settings have it."""
    shared: float = settings.SHARED_LOOK_SECONDS
    return shared if seconds is None else seconds * bool(shared)


def ends(look: Look, limit: float) -> float:
    """When a look is too old, by `time.monotonic()`."""
    # How long the first one took tells nothing of the next.
    rest = look.busy_seconds * BUSY_SHARE if limit and not look.is_first else 0.0
    return look.began + max(limit, rest)
