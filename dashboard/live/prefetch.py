"""Render fragments shortly before the tabs that refresh them ask, so that no tab waits.

A tab asks again after an interval that its page sets, so the time of its next request is known. A thread of each web
process renders the fragment just before, from a fresh snapshot. It queries no more often than those tabs would, and
stops for closed tabs. If the database is slow, only this thread waits; tabs get the previous state
(`tasks.panels.Snapshot.made`).
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from operator import itemgetter

from django.db import Error, close_old_connections, connections
from django.http import HttpRequest
from django.utils import translation

from dashboard import conf
from dashboard.live import snapshots
from dashboard.live.snapshots import Latest
from tasks.panels import Snapshot

logger = logging.getLogger(__name__)
LEAD_SECONDS = 0.35  # twice the time of the slowest fragment with ten million tasks
JITTER_SECONDS = 0.1  # how much later than planned tabs ask
LATE_SECONDS = 1.0  # a tab that is later than this is hidden or closed
MOST_PARTS = 50
LONGEST_SECONDS = 0.3  # a slower search is left to its own tabs

Make = Callable[[HttpRequest, Snapshot], object]


@dataclass(eq=False)
class Prefetched:
    """A fragment that tabs refresh every `every` seconds. Times are `time.monotonic()`."""

    name: Hashable  # of the snapshot that it is made from
    every: float
    make: Make
    request: HttpRequest  # the latest one
    language: str | None = None
    seconds: float | None = None  # how long a snapshot of this name stays valid; None: as long as the shared one
    snapshot: Snapshot | None = None  # the latest snapshot that it was made from
    is_slow: bool = False  # too slow to make the others wait
    asked_at: deque[float] = field(default_factory=deque)  # the last request of each tab, oldest first

    def note(self, now: float, request: HttpRequest, snapshot: Snapshot | None) -> None:
        """Record a request, and drop the oldest one that it repeats. `snapshot` already has the fragment."""
        if self.asked_at and self.asked_at[0] + self.every <= now + LEAD_SECONDS:
            self.asked_at.popleft()
        self.asked_at.append(now)
        self.request, self.snapshot = request, snapshot

    def due(self, now: float, latest: Latest) -> tuple[float, float] | None:
        """When to make it next and when its tab asks, given the latest snapshot; None if no tab needs it."""
        while self.asked_at and self.gone_at() < now:
            self.asked_at.popleft()
        if self.is_slow:
            return None
        lead = min(LEAD_SECONDS, conf.get("SHARED_LOOK_SECONDS") / 2)  # it must still be fresh when the tab asks
        for at in self.asked_at:
            comes = at + self.every
            if comes >= latest.serves_until - JITTER_SECONDS:
                return max(comes - lead, latest.ends), comes
            if self.snapshot is not latest.snapshot:
                return comes - lead, comes
        return None

    def gone_at(self) -> float:
        """When the oldest request expires."""
        return self.asked_at[0] + self.every + LATE_SECONDS


class PrefetchThread(threading.Thread):
    """Renders fragments before tabs ask, until stopped; while idle it holds no database session."""

    def __init__(self) -> None:
        super().__init__(name="prefetch", daemon=True)
        self.parts: dict[Hashable, Prefetched] = {}  # the latest requested is last
        self.changed = threading.Condition()
        self.is_stopping = False
        self.problem = ""

    def note(self, key: Hashable, part: Prefetched, snapshot: Snapshot | None) -> None:
        """As `note()` below."""
        with self.changed:
            known = self.parts.pop(key, part)
            self.parts[key] = known
            known.note(time.monotonic(), part.request, snapshot)
            if len(self.parts) > MOST_PARTS:
                del self.parts[next(iter(self.parts))]
            self.changed.notify()

    def stop(self) -> None:
        """Ask it to end after the current fragment."""
        with self.changed:
            self.is_stopping = True
            self.changed.notify()

    def run(self) -> None:
        while not self.is_stopping:
            part = self.await_due()
            if part is not None:
                self.make(part)
        connections.close_all()

    def await_due(self) -> Prefetched | None:
        """The fragment to make now; None after a wait, because the next one may have changed."""
        with self.changed:
            at, part = self.next_due()
            seconds = at - time.monotonic()
            if seconds <= 0:
                return part
            if not self.parts:
                connections.close_all()
            if not self.is_stopping:
                self.changed.wait(min(seconds, threading.TIMEOUT_MAX))
            return None

    def next_due(self) -> tuple[float, Prefetched | None]:
        """The fragment that is due first, and when; with none due, the time at which to drop expired requests.

        Among overdue fragments, the one whose tab asks first.
        """
        now = time.monotonic()
        first: tuple[float, float, Prefetched | None] = (math.inf, math.inf, None)
        for key, part in list(self.parts.items()):
            due = part.due(now, snapshots.latest(part.name, part.seconds))
            if not part.asked_at:
                del self.parts[key]
                continue
            told = (max(due[0], now), due[1], part) if due else (part.gone_at(), math.inf, None)
            first = min(first, told, key=itemgetter(0, 1))
        return first[0], first[2]

    def make(self, part: Prefetched) -> None:
        """Render it from a fresh snapshot. Errors are only logged: the tabs will ask themselves."""
        with self.changed:
            snapshot = part.snapshot = snapshots.current(part.name, part.seconds)
            request = part.request
        close_old_connections()
        before, self.problem = self.problem, ""
        began = time.monotonic()
        try:
            with translation.override(part.language):
                part.make(request, snapshot)
        except Error as error:
            self.problem = str(error).strip().partition("\n")[0]
            if self.problem != before:  # log an outage once, not every second
                logger.warning("parts are not made before they are asked for: %s", self.problem)
        except Exception:
            logger.exception("A part could not be made before it was asked for")
        # The shared fragments are made here however slow they are; a slow search is left to its tabs.
        part.is_slow = part.name != snapshots.EVERYTHING and time.monotonic() - began > LONGEST_SECONDS


_thread: PrefetchThread | None = None  # None in tests and under `runserver`


def start() -> None:
    """Start the thread; called by each web process after its fork."""
    global _thread
    _thread = PrefetchThread()
    _thread.start()


def note(key: Hashable, part: Prefetched, snapshot: Snapshot | None = None) -> None:
    """Record that a tab got this fragment from this snapshot (None: from another) and will ask again.

    `part` is new for each call; the one kept under `key` takes over its request.
    """
    if _thread is not None and conf.get("SHARED_LOOK_SECONDS"):
        _thread.note(key, part, snapshot)


def will_make(key: Hashable) -> bool:
    """True if the thread will make this fragment."""
    if _thread is None or not _thread.is_alive():
        return False
    part = _thread.parts.get(key)
    return part is not None and not part.is_slow
