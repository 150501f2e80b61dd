"""Share one snapshot of the system among all requests within a second.

Each web process has its own, and there are few. A snapshot holds facts, never translated text.
"""

import math
import threading
import time
from collections.abc import Hashable
from typing import NamedTuple

from django.http import HttpRequest

from dashboard import conf
from tasks.panels import STANDS_IN_SECONDS, Snapshot

BUSY_SHARE = 10
# A request accepts a snapshot that is a little too old: dashboard/live/prefetch.py renews it soon.
GRACE = 1.5
EVERYTHING = "everything"  # the snapshot that pages, navigation and most fragments share; others serve one query each
MOST_SNAPSHOTS = 50

_guard = threading.Lock()
_snapshots: dict[Hashable, Snapshot] = {}  # newest last


def of(request: HttpRequest) -> Snapshot:
    """The snapshot of this request: its page, navigation and fragments show the same moment."""
    if not hasattr(request, "rowlock_snapshot"):
        give(request, current(grace=GRACE))
    snapshot: Snapshot = request.rowlock_snapshot  # type: ignore[attr-defined]
    return snapshot


def give(request: HttpRequest, snapshot: Snapshot) -> None:
    """Make this request use that snapshot."""
    request.rowlock_snapshot = snapshot  # type: ignore[attr-defined]


def forget() -> None:
    """Drop all snapshots after a person's change, so that the response shows the change."""
    with _guard:
        _snapshots.clear()


class Latest(NamedTuple):
    """The current snapshot, if any: when to renew it, and until when requests may get it."""

    snapshot: Snapshot | None
    ends: float  # both by `time.monotonic()`
    serves_until: float


def latest(name: Hashable = EVERYTHING, seconds: float | None = None) -> Latest:
    """The current snapshot of this name; `seconds` as in `current`."""
    limit = limit_of(seconds)
    with _guard:
        snapshot = _snapshots.get(name)
    if snapshot is None:
        return Latest(None, -math.inf, -math.inf)
    return Latest(snapshot, ends(snapshot, limit), ends(snapshot, limit * GRACE))


def since() -> float:
    """The `time.monotonic()` before which a snapshot is too old to stand in for the next one."""
    return time.monotonic() - 2 * float(conf.get("SHARED_LOOK_SECONDS"))


def current(name: Hashable = EVERYTHING, seconds: float | None = None, *, grace: float = 1.0) -> Snapshot:
    """The snapshot of this name, at most `seconds` old (None: SHARED_LOOK_SECONDS, where 0 turns sharing off).

    A slow one is kept longer: a process spends at most a tenth of its time on queries, however slow the database is.
    `grace`: factor by which it may be older.
    """
    limit = limit_of(seconds)
    with _guard:
        snapshot = _snapshots.get(name)
        if snapshot is None or time.monotonic() >= ends(snapshot, limit * grace):
            former, snapshot = _snapshots.pop(name, None), Snapshot(is_first=snapshot is None)
            _snapshots[name] = snapshot
            if len(_snapshots) > MOST_SNAPSHOTS:
                del _snapshots[next(iter(_snapshots))]
            if former:
                former.before = None  # or the chain would keep every snapshot alive
                if snapshot.began - ends(former, limit) < STANDS_IN_SECONDS:
                    snapshot.before = former
        return snapshot


def limit_of(seconds: float | None) -> float:
    """The maximum age of a snapshot, 0 if sharing is off."""
    shared: float = conf.get("SHARED_LOOK_SECONDS")
    return shared if seconds is None else seconds * bool(shared)


def ends(snapshot: Snapshot, limit: float) -> float:
    """When a snapshot is too old, by `time.monotonic()`."""
    # The duration of the first one says nothing about the next.
    rest = snapshot.busy_seconds * BUSY_SHARE if limit and not snapshot.is_first else 0.0
    return snapshot.began + max(limit, rest)
