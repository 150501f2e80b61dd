"""What operators see first: lines that need attention, and figures. Each app says its own, in its module `attention`.

Sources are registered, so that an app which is left out takes its lines with it, and an adopter's app adds its own:

    @panels.attention
    def parcels(look: Look) -> Iterator[Line]:
        lost = look.once(count_lost)
        if lost:
            yield Line(key="parcels:lost", text=_("%d parcels are lost.") % lost, severity=Severity.LOSING, size=lost)

A source reads the database only through `look.once`, so that one computation serves everybody who looks in the same
second. Its sentences are made for each reader, in the reader's language.
"""

import math
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from hashlib import sha256
from typing import Any, TypeVar, cast

from django.db import DatabaseError, connection, transaction

T = TypeVar("T")
LONGEST_KEY = 300
STANDS_IN_SECONDS = 5.0  # how long the last look is shown while the next one is being made

# The first page must open while a migration holds a table: what cannot be told soon is left out, and said to be.
PATIENCE = """
SELECT clock_timestamp(), set_config('lock_timeout', '300ms', true), set_config('statement_timeout', '2s', true)
"""


class Severity(IntEnum):
    """How urgent a line is, worst first. The first two are red: a person must act. A NOTICE goes by itself."""

    STOPPED = 1  # work waits and nothing will take it
    LOSING = 2  # work has failed, or waits for a person's decision
    SLOW = 3  # it goes on, but not as it should
    NOTICE = 4


@dataclass(frozen=True)
class Step:
    """The one safe thing to do next: a page to open, or a command to type, or both."""

    label: str = ""
    url: str = ""
    command: str = ""


@dataclass(frozen=True)
class Line:
    """One thing that needs a person: since when, why, and what to do.

    `key` names the trouble and stays the same while it lasts; `size` is how many things it is about, so that a line
    that was acknowledged comes back when it grows. Who lacks `permission` does not see it.
    """

    key: str
    text: str
    severity: Severity
    why: str = ""
    since: datetime | None = None
    size: int = 1
    step: Step = Step()
    permission: str = "tasks.view_task"

    @property
    def is_red(self) -> bool:
        """Whether a person must act."""
        return self.severity < Severity.SLOW

    @property
    def id(self) -> str:
        """A name for the page's elements: the same for the same trouble, and harmless."""
        return sha256(self.key.encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        """The key, short enough for an index: a long one ends in a hash of itself."""
        if len(self.key) <= LONGEST_KEY:
            return self.key
        return f"{self.key[: LONGEST_KEY - 17]}~{sha256(self.key.encode()).hexdigest()[:16]}"


@dataclass(frozen=True)
class Figure:
    """One number of the overview, in words that an operator reads at a glance; a link to what is behind it."""

    label: str
    value: str
    url: str = ""
    note: str = ""
    is_trouble: bool = False
    permission: str = "tasks.view_task"


@dataclass
class Look:
    """One moment of the system: each question is asked once, and everybody gets the same answer.

    Threads that ask the same look wait for the one that computes.
    """

    began: float = field(default_factory=time.monotonic)
    _answers: dict[Callable[[], Any], Any] = field(default_factory=dict, repr=False)
    _made: dict[Hashable, Any] = field(default_factory=dict, repr=False)
    before: "Look | None" = field(default=None, repr=False)  # the one that this one follows
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    _now: datetime | None = None
    busy_seconds: float = 0.0  # spent in asking
    is_first: bool = False  # in its process, which connects and loads what it needs meanwhile

    @property
    def now(self) -> datetime:
        """The database's clock when this look's first question was asked."""
        with self._lock:
            if self._now is None:
                self.once(nothing)
            assert self._now is not None
            return self._now

    def knows(self, ask: Callable[[], Any]) -> bool:
        """Whether this question has been answered already."""
        with self._lock:
            return ask in self._answers and not isinstance(self._answers[ask], DatabaseError)

    def once(self, ask: Callable[[], T]) -> T:
        """The answer of `ask` in this look; a DatabaseError of it is raised again for everybody."""
        with self._lock:
            if ask not in self._answers:
                asked_at = time.monotonic()
                self._answers[ask] = self._ask(ask)
                self.busy_seconds += time.monotonic() - asked_at
            answer: T | DatabaseError = self._answers[ask]
        if isinstance(answer, DatabaseError):
            raise answer
        return answer

    def made(self, key: Hashable, make: Callable[[], T], *, good_since: float = math.inf) -> T:
        """What is made of the answers, once for each key; an error of it is kept for nobody.

        While another thread is asking or making, what the look before had made of its own is good enough for a while;
        without that too, if that look began at `good_since` or later, by `time.monotonic()`.
        """
        if key in self._made:  # without the lock, under which another part may be being made
            return cast("T", self._made[key])
        before, meanwhile = self.before, None
        if before is not None and not self._is_late():
            meanwhile = before._made.get(key)
            if meanwhile is not None and before.began >= good_since:
                return cast("T", meanwhile)
        if not self._lock.acquire(blocking=meanwhile is None):
            return cast("T", meanwhile)  # never None: then it waits for the lock
        try:
            if key not in self._made:
                self._made[key] = make()
            found: T = self._made[key]
            return found
        finally:
            self._lock.release()

    def has_made(self, key: Hashable) -> bool:
        """Whether that is made of this look already."""
        return key in self._made

    def _is_late(self) -> bool:
        """Whether it has been at work for longer than another may stand in for it."""
        return time.monotonic() - self.began > STANDS_IN_SECONDS

    def _ask(self, ask: Callable[[], T]) -> "T | DatabaseError":
        try:
            with short_patience() as now:
                self._now = self._now or now
                return ask()
        except DatabaseError as error:
            return error


@contextmanager
def short_patience() -> Iterator[datetime]:
    """A transaction whose statements give up soon; gives the database's clock."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(PATIENCE)
            now: datetime = cursor.fetchone()[0]
        yield now


def nothing() -> None:
    """The question of who only wants to know the time."""


AttentionSource = Callable[[Look], Iterable[Line]]
FigureSource = Callable[[Look], Iterable[Figure]]
ATTENTION: list[AttentionSource] = []
FIGURES: list[FigureSource] = []


def attention(source: AttentionSource) -> AttentionSource:
    """Register a source of lines that need attention."""
    ATTENTION.append(source)
    return source


def figures(source: FigureSource) -> FigureSource:
    """Register a source of figures."""
    FIGURES.append(source)
    return source
