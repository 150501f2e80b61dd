"""Parts of pages are made shortly before the tabs that refresh them will ask: a tab waits for nobody.

A tab that has asked for a part asks for it again after a time that its page gives, so it is known when. A thread of
each web process makes the part a moment earlier, of a look that is fresh then. It looks no more often than those tabs'
own requests would, and not at all for a tab that is gone. However slow the database is, this thread waits for it and
not one thread for each tab, which get the last state meanwhile (`tasks.panels.Look.made`).
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from operator import itemgetter

from django.conf import settings
from django.db import Error, close_old_connections, connections
from django.http import HttpRequest
from django.utils import translation

from dashboard import shared_look
from dashboard.shared_look import Latest
from tasks.panels import Look

logger = logging.getLogger(__name__)
LEAD_SECONDS = 0.35  # what the dearest part takes beside ten million tasks, twice
JITTER_SECONDS = 0.1  # by which tabs come later than their page says
LATE_SECONDS = 1.0  # a tab that has not come by then is hidden or gone
MOST_PARTS = 50
LONGEST_SECONDS = 0.3  # a search that takes longer is left to its own tabs

Make = Callable[[HttpRequest, Look], object]


@dataclass(eq=False)
class Prefetched:
    """A part that some tabs refresh, every so many seconds each. Times are `time.monotonic()`."""

    name: Hashable  # of the look that it is made of
    every: float
    make: Make
    request: HttpRequest  # the latest
    language: str | None = None
    seconds: float | None = None  # that a look of this name is good enough, None: as the shared one
    look: Look | None = None  # the latest that it was made of
    is_slow: bool = False  # too much so for all the others to wait for it
    asked_at: deque[float] = field(default_factory=deque)  # the last request of each tab

    def note(self, now: float, request: HttpRequest, look: Look | None) -> None:
        """A tab has asked: the first that was expected by now, if any was. `look`: what the part is made of already."""
        if self.asked_at and self.asked_at[0] + self.every <= now + LEAD_SECONDS:
            self.asked_at.popleft()
        self.asked_at.append(now)
        self.request, self.look = request, look

    def due(self, now: float, latest: Latest) -> tuple[float, float] | None:
        """When to make it next, given the latest look there is, and when its tab comes; None when none will."""
        while self.asked_at and self.gone_at() < now:
            self.asked_at.popleft()
        if self.is_slow:
            return None
        lead = min(LEAD_SECONDS, settings.SHARED_LOOK_SECONDS / 2)  # it must be fresh still when the tab comes
        for at in self.asked_at:
            comes = at + self.every
            if comes >= latest.serves_until - JITTER_SECONDS:
                return max(comes - lead, latest.ends), comes
            if self.look is not latest.look:
                return comes - lead, comes
        return None

    def gone_at(self) -> float:
        """When the first of these tabs is given up."""
        return self.asked_at[0] + self.every + LATE_SECONDS


class PrefetchThread(threading.Thread):
    """Makes the parts that will be asked for, until stopped; without any it holds no session of the database."""

    def __init__(self) -> None:
        super().__init__(name="prefetch", daemon=True)
        self.parts: dict[Hashable, Prefetched] = {}  # those asked for latest stand last
        self.changed = threading.Condition()
        self.is_stopping = False
        self.problem = ""

    def note(self, key: Hashable, part: Prefetched, look: Look | None) -> None:
        """As the function below."""
        with self.changed:
            known = self.parts.pop(key, part)
            self.parts[key] = known
            known.note(time.monotonic(), part.request, look)
            if len(self.parts) > MOST_PARTS:
                del self.parts[next(iter(self.parts))]
            self.changed.notify()

    def stop(self) -> None:
        """Ask it to end after the part at hand."""
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
        """The part that is to be made now; None after a wait in which that has changed."""
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
        """The part that is due first, and when; without one, when it is to be asked again whose tabs are gone.

        Of those that are due already the one whose tab comes first.
        """
        now = time.monotonic()
        first: tuple[float, float, Prefetched | None] = (math.inf, math.inf, None)
        for key, part in list(self.parts.items()):
            due = part.due(now, shared_look.latest(part.name, part.seconds))
            if not part.asked_at:
                del self.parts[key]
                continue
            told = (max(due[0], now), due[1], part) if due else (part.gone_at(), math.inf, None)
            first = min(first, told, key=itemgetter(0, 1))
        return first[0], first[2]

    def make(self, part: Prefetched) -> None:
        """Make it of a look that is fresh. What goes wrong is told to the tabs, who ask for themselves."""
        with self.changed:
            look = part.look = shared_look.current(part.name, part.seconds)
            request = part.request
        close_old_connections()
        before, self.problem = self.problem, ""
        began = time.monotonic()
        try:
            with translation.override(part.language):
                part.make(request, look)
        except Error as error:
            self.problem = str(error).strip().partition("\n")[0]
            if self.problem != before:  # a database that is away would be told of each second
                logger.warning("parts are not made before they are asked for: %s", self.problem)
        except Exception:
            logger.exception("A part could not be made before it was asked for")
        # What all tabs share is made here however long it takes; a search is left to who asks for it.
        part.is_slow = part.name != shared_look.EVERYTHING and time.monotonic() - began > LONGEST_SECONDS


_thread: PrefetchThread | None = None  # none: as in tests and under `runserver`


def start() -> None:
    """Called by each process of the web server, after its fork."""
    global _thread
    _thread = PrefetchThread()
    _thread.start()


def note(key: Hashable, part: Prefetched, look: Look | None = None) -> None:
    """A tab has got this part, made of this look (None: of another), and will ask again in so many seconds.

    The part is told anew each time; the one that is kept for the key takes its request over.
    """
    if _thread is not None and settings.SHARED_LOOK_SECONDS:
        _thread.note(key, part, look)


def will_make(key: Hashable) -> bool:
    """Whether this part is about to be made, of whatever look there is."""
    if _thread is None or not _thread.is_alive():
        return False
    part = _thread.parts.get(key)
    return part is not None and not part.is_slow
