"""The registries through which an app adds to the pages, from its module `attention`.

Lines that need attention, figures, links of the menu, models whose rows operators look at, and gauges of `/metrics`.

Sources are registered: a removed app takes its lines with it, and an adopter's app can add its own:

    @panels.attention
    def parcels(snapshot: Snapshot) -> Iterator[AttentionLine]:
        lost = snapshot.once(count_lost)
        if lost:
            text = _("%d parcels are lost.") % lost
            yield AttentionLine(key="parcels:lost", text=text, severity=Severity.LOSING, size=lost)

A source reads the database only through `snapshot.once`, so that all viewers within one second share one computation.
Sentences are made for each viewer, in the viewer's language.
"""

import math
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from functools import cache
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar, cast

from django.db import DatabaseError, connection, models, transaction
from django.utils.functional import Promise
from django.utils.module_loading import autodiscover_modules

from tasks.support.database import is_lock_not_available

T = TypeVar("T")
LONGEST_KEY = 300
STANDS_IN_SECONDS = 5.0  # how long the last result is shown while the next one is computed

# The first page must open while a migration locks a table: slow parts are left out, with a note.
PATIENCE = """
SELECT clock_timestamp(), set_config('lock_timeout', %(lock)s::text, true),
    set_config('statement_timeout', '2s', true)
"""
LOCK_WAIT, NEXT_LOCK_WAIT = "300ms", "30ms"


class Severity(IntEnum):
    """The urgency of a line, worst first. STOPPED is critical, the others are warnings.

    A person must act on the first two. A NOTICE disappears by itself.
    """

    STOPPED = 1  # work stands still, and goes on only if a person acts
    LOSING = 2  # work has failed or waits for a person
    SLOW = 3  # work continues, but too slowly
    NOTICE = 4


@dataclass(frozen=True)
class Step:
    """The one safe next step: a page to open, a command to type, or both."""

    label: str = ""
    url: str = ""
    command: str = ""


@dataclass(frozen=True)
class Act:
    """A button that posts `fields` to `url`, a page that asks before it acts.

    `action` is its `data-action`. Users without `permission` see it disabled.
    """

    label: str
    url: str
    fields: tuple[tuple[str, str], ...]
    action: str
    permission: str
    is_destructive: bool = False


def name_of(key: str) -> str:
    """The key of a line, short enough for an index: a long key ends in its own hash."""
    if len(key) <= LONGEST_KEY:
        return key
    return f"{key[: LONGEST_KEY - 17]}~{sha256(key.encode()).hexdigest()[:16]}"


@dataclass(frozen=True)
class AttentionLine:
    """One thing that needs a person: since when, why, and the next step.

    `key` identifies the problem while it lasts. `size` is the number of affected things: an acknowledged line returns
    when it grows. Users without `permission` do not see the line. `brief`: the text in few words, for the line that
    folds the warnings. `act`: what ends the problem, if a button can; its page is then behind the menu.
    """

    key: str
    text: str
    severity: Severity
    why: str = ""
    since: datetime | None = None
    size: int = 1
    step: Step = Step()
    permission: str = "tasks.view_task"
    brief: str = ""
    act: Act | None = None

    @property
    def is_red(self) -> bool:
        """True if a person must act."""
        return self.severity < Severity.SLOW

    @property
    def is_critical(self) -> bool:
        """True if work stands still until a person acts; the other lines are warnings."""
        return self.severity is Severity.STOPPED

    @property
    def in_brief(self) -> str:
        return self.brief or self.text.rstrip(".")

    @property
    def id(self) -> str:
        """A safe element id for the page, the same for the same problem."""
        return sha256(self.key.encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        return name_of(self.key)


@dataclass(frozen=True)
class Figure:
    """One number of the overview, with a short label and a link to its details.

    `spark`: the values of the last hour, oldest first.
    """

    label: str
    value: str
    url: str = ""
    note: str = ""
    is_trouble: bool = False
    permission: str = "tasks.view_task"
    spark: tuple[float, ...] = ()


@dataclass
class Snapshot:
    """One snapshot of the system: each query runs once, and all viewers get the same result.

    Threads that need the same result wait for the one that computes it.
    """

    began: float = field(default_factory=time.monotonic)
    _answers: dict[Callable[[], Any], Any] = field(default_factory=dict, repr=False)
    _made: dict[Hashable, Any] = field(default_factory=dict, repr=False)
    before: "Snapshot | None" = field(default=None, repr=False)  # the previous snapshot
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    _now: datetime | None = None
    _lock_wait: str = LOCK_WAIT  # short after one wait for a lock was in vain: a page asks much of the same table
    busy_seconds: float = 0.0  # spent in queries
    is_first: bool = False  # in its process, which still connects and loads modules

    @property
    def now(self) -> datetime:
        """The database's clock at this snapshot's first query."""
        with self._lock:
            if self._now is None:
                self.once(nothing)
            assert self._now is not None
            return self._now

    def knows(self, ask: Callable[[], Any]) -> bool:
        """True if this query has a result already."""
        with self._lock:
            return ask in self._answers and not isinstance(self._answers[ask], DatabaseError)

    def once(self, ask: Callable[[], T]) -> T:
        """The result of `ask` in this snapshot; its DatabaseError is raised again for every caller."""
        with self._lock:
            if ask not in self._answers:
                asked_at = time.monotonic()
                try:
                    with transaction.atomic():
                        with connection.cursor() as cursor:
                            cursor.execute(PATIENCE, {"lock": self._lock_wait})
                            self._now = cursor.fetchone()[0] if self._now is None else self._now
                        self._answers[ask] = ask()
                except DatabaseError as error:
                    self._answers[ask] = error
                    self._lock_wait = NEXT_LOCK_WAIT if is_lock_not_available(error) else self._lock_wait
                self.busy_seconds += time.monotonic() - asked_at
            answer: T | DatabaseError = self._answers[ask]
        if isinstance(answer, DatabaseError):
            raise answer
        return answer

    def made(self, key: Hashable, make: Callable[[], T], *, good_since: float = math.inf) -> T:
        """The value that `make` builds from the results, once for each key; an error is not cached.

        While another thread holds the lock, the previous snapshot's value for this key is used for up to
        STANDS_IN_SECONDS. It is used even without contention if that snapshot began at `good_since`
        (`time.monotonic()`) or later.
        """
        if key in self._made:  # without the lock, which another thread may hold to build a part
            return cast("T", self._made[key])
        before, meanwhile = self.before, None
        if before is not None and time.monotonic() - self.began <= STANDS_IN_SECONDS:
            meanwhile = before._made.get(key)
            if meanwhile is not None and before.began >= good_since:
                return cast("T", meanwhile)
        if not self._lock.acquire(blocking=meanwhile is None):
            return cast("T", meanwhile)  # never None here: without a value it waits for the lock
        try:
            if key not in self._made:
                self._made[key] = make()
            found: T = self._made[key]
            return found
        finally:
            self._lock.release()

    def has_made(self, key: Hashable) -> bool:
        """True if that value is in this snapshot."""
        return key in self._made


def nothing() -> None:
    """No-op query, for callers that only need the server's clock."""


AttentionSource = Callable[[Snapshot], Iterable[AttentionLine]]
FigureSource = Callable[[Snapshot], Iterable[Figure]]
Alerter = Callable[[], str]
ALERTERS: list[Alerter] = []
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


def alerter(send: Alerter) -> Alerter:
    """Register what `queue_status --alert` calls: it sends what is new, waits for it, and says so in a sentence."""
    ALERTERS.append(send)
    return send


class Page(NamedTuple):
    """One link of the menu.

    `permission`: needed to open it (empty: any login); `key`: opens it after `g`; `number`: the field of the
    overview's counts that is shown beside it.
    """

    label: str | Promise
    url_name: str
    permission: str = ""
    key: str = ""
    number: str = ""


@dataclass(frozen=True)
class WatchedModel:
    """A model whose rows operators look at. `label` names one row: `Order %(id)s`."""

    model: type[models.Model]
    label: str | Promise

    @property
    def kind(self) -> str:
        """Its word in the audit's targets: `order:12`."""
        return str(self.model._meta.model_name)

    @property
    def url_name(self) -> str:
        return f"admin:{self.model._meta.app_label}_{self.model._meta.model_name}_change"

    @property
    def permission(self) -> str:
        return f"{self.model._meta.app_label}.view_{self.model._meta.model_name}"


class Gauge(NamedTuple):
    """One gauge of `/metrics`, with the value of each combination of labels."""

    name: str
    text: str
    labels: tuple[str, ...]
    values: Mapping[tuple[str, ...], float]


GaugeSource = Callable[[Snapshot], Iterable[Gauge]]
PAGES: list[Page] = []
WATCHED: list[WatchedModel] = []
GAUGES: dict[str, GaugeSource] = {}  # by app


@cache
def load() -> None:
    """Import each app's `attention` module on first use, so that other commands do not pay for it."""
    autodiscover_modules("attention")


def page(link: Page) -> Page:
    """Add a link to the menu."""
    PAGES.append(link)
    return link


def watch(model: type[models.Model], label: str | Promise) -> WatchedModel:
    """Have the lock page check the newest rows of this model, and the palette and the audit link to them by number."""
    WATCHED.append(WatchedModel(model, label))
    return WATCHED[-1]


def gauges(source: GaugeSource) -> GaugeSource:
    """Register the gauges of an app, which make one section of `/metrics`."""
    GAUGES[source.__module__.partition(".")[0]] = source
    return source
