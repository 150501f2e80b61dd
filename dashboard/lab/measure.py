"""The numbers of a run: effects by worker and item, lock waits, and the result."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import psycopg
from django.utils.translation import gettext as _
from psycopg.rows import dict_row

from dashboard.lab.patterns.pattern import Pattern
from dashboard.lab.worker import Plan
from dashboard.locks.activity import rows_waited_for
from tasks.support.database import Connection, fetch

MOST_SPANS = 1500
MOST_LIVE_SPANS = 300  # it is drawn again each second

# The first effects of a run are the most telling, because all processes meet there. The numbers count all effects.
SPANS = """
WITH start AS (SELECT min(began) AS at FROM lab_ledger WHERE kind IN ('effect', 'attempt', 'remote', 'start'))
SELECT worker, item, kind, extract(epoch FROM began - start.at)::float8 AS began,
    extract(epoch FROM coalesce(ended, began) - start.at)::float8 AS ended, wait_ms / 1000 AS wait,
    kind = 'effect' AND row_number() OVER (PARTITION BY kind, item ORDER BY id) > 1 AS is_duplicate
FROM lab_ledger, start
WHERE kind = ANY(%(kinds)s::text[]) ORDER BY id LIMIT %(most)s::int
"""
# The latest spans of a running run.
LATEST_SPANS = """
WITH start AS (SELECT min(began) AS at FROM lab_ledger WHERE kind IN ('effect', 'attempt', 'remote', 'start')),
latest AS (
    SELECT * FROM lab_ledger WHERE kind = ANY(%(kinds)s::text[]) ORDER BY id DESC LIMIT %(most)s::int
)
SELECT worker, item, kind, extract(epoch FROM began - start.at)::float8 AS began,
    extract(epoch FROM coalesce(ended, clock_timestamp()) - start.at)::float8 AS ended, wait_ms / 1000 AS wait,
    kind = 'effect' AND EXISTS (
        SELECT FROM lab_ledger AS earlier
        WHERE earlier.kind = 'effect' AND earlier.item = latest.item AND earlier.id < latest.id
    ) AS is_duplicate
FROM latest, start ORDER BY id
"""


@dataclass(frozen=True)
class Span:
    """A stretch of a worker's time; seconds from the start of the run. `wait`: seconds waited before it."""

    worker: int
    item: int | None
    kind: str
    began: float
    ended: float
    wait: float
    is_duplicate: bool

    @classmethod
    def from_json(cls, values: list[Any]) -> Self:
        return cls(*values)

    def as_json(self) -> list[Any]:
        """A short list, because a column holds many of them."""
        times = [round(value, 4) for value in (self.began, self.ended, self.wait)]
        return [self.worker, self.item, self.kind, *times, self.is_duplicate]


def read_spans(connection: Connection, *, has_attempts: bool) -> list[Span]:
    """The first spans of a run, and all kills; `connection` sees only its schema.

    `has_attempts`: attempts are recorded apart from their success, as with the accounts.
    """
    work = {"kinds": [kind_of_work(has_attempts)], "most": MOST_SPANS}
    kills = {"kinds": ["kill"], "most": MOST_SPANS}
    return [Span(**row) for params in (work, kills) for row in fetch(connection, SPANS, params)]


def latest_spans(connection: Connection, *, has_attempts: bool) -> list[Span]:
    """The latest spans and kills of a running run; an open span ends now."""
    params = {"kinds": [kind_of_work(has_attempts), "kill"], "most": MOST_LIVE_SPANS}
    return [Span(**row) for row in fetch(connection, LATEST_SPANS, params)]


def kind_of_work(has_attempts: bool) -> str:
    return "attempt" if has_attempts else "effect"


# Each line has the wait since the previous one; an account's attempts between two effects have waits of their own.
EFFECTS = """
WITH line AS (
    SELECT id, kind, worker, item, began, sum(wait_ms) OVER (PARTITION BY worker ORDER BY id) AS waited
    FROM lab_ledger WHERE worker >= 0
)
SELECT worker, item, began, waited - coalesce(lag(waited) OVER (PARTITION BY worker ORDER BY id), 0) AS wait_ms
FROM line WHERE kind = 'effect' ORDER BY began, id
"""
REMOTE = "SELECT count(*) - count(DISTINCT item) AS repeated FROM lab_ledger WHERE kind = 'remote'"
LOST = "SELECT count(*) AS lost FROM lab_ledger WHERE kind = 'lost'"
DURATION = """
SELECT coalesce(extract(epoch FROM max(coalesce(ended, began)) - min(began)), 0)::float8 AS seconds
FROM lab_ledger WHERE kind IN ('effect', 'attempt', 'remote')
"""
# Every line repeats the counters, which only grow, so each process's largest values are its last.
COUNTERS = """
SELECT sum(lost_races)::int AS lost_races, sum(retries)::int AS retries, sum(queries)::int AS queries
FROM (SELECT max(lost_races) AS lost_races, max(retries) AS retries, max(queries) AS queries
      FROM lab_ledger WHERE worker >= 0 GROUP BY worker, process) AS last
"""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The numbers of one run; times in the unit of their name.

    Args:
        duplicates: effects beyond the first of each item.
        lost_updates: acknowledged writes that are missing.
        lost_work: discarded results, and items with an effect that are not marked as done.
        lost_races: candidates that another worker took first.
        order_inversions: effects that began after one of a later item.
        wait_ms_p50, wait_ms_p95: time in statements and locks that may have to wait, per effect.
        unprocessed: items without any effect when the run ended.
        repeated_calls: slow calls beyond the first of each item.
        may_repeat: effects that the kills may have repeated in a pattern that keeps its promise.
        blocked_samples: sessions of the run that waited for a lock, summed over all samples.
        stopped: the reason if the run was ended early, else empty.
        share: effects by worker.
        guarded: the numbers of the same load with the guard that the pattern lacks, if there is such a part.
        waited_share: the share of all workers' time in which they waited for a lock, as sampled, 0 to 1.
    """

    pattern: str
    items: int
    processed: int
    duplicates: int
    lost_updates: int
    lost_work: int
    lost_races: int
    order_inversions: int
    seconds: float
    items_per_second: float
    wait_ms_p50: float
    wait_ms_p95: float
    queries_per_item: float
    unprocessed: int
    retries: int
    repeated_calls: int
    kills: int
    may_repeat: int
    blocked_samples: int
    stopped: str = ""
    share: dict[int, int] = field(default_factory=dict)
    guarded: dict[str, Any] | None = None
    waited_share: float = 0.0

    @property
    def is_clean(self) -> bool:
        """True if nothing was lost or left, and no more repeated than the kills explain."""
        lost = self.lost_updates or self.lost_work or self.unprocessed or self.stopped
        return self.duplicates <= self.may_repeat and not lost

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"is_clean": self.is_clean}


def measure(
    connection: psycopg.Connection,
    plan: Plan,
    pattern: Pattern,
    sampler: "WaitSampler",
    *,
    kills: int,
    stopped: str,
) -> Result:
    """Read the ledger and the rows of a finished run; `connection` sees only its schema."""
    cursor, subject = connection.cursor(row_factory=dict_row), pattern.rows

    def one(statement: str) -> Any:
        return next(iter(cursor.execute(statement).fetchone().values()))  # type: ignore[union-attr]

    effects = cursor.execute(EFFECTS).fetchall()
    counters: dict[str, Any] = cursor.execute(COUNTERS).fetchone() or {}
    items = [effect["item"] for effect in effects]
    processed = set(items)
    done = {row["id"] for row in cursor.execute(subject.done).fetchall()}
    seconds = one(DURATION)
    waits = sorted(effect["wait_ms"] for effect in effects)
    return Result(
        pattern=plan.pattern,
        items=plan.items,
        processed=len(processed),
        duplicates=len(items) - len(processed),
        lost_updates=max(0, one(subject.told) - one(subject.kept)),
        lost_work=one(LOST) + len(processed - done),
        lost_races=counters["lost_races"] or 0,
        order_inversions=inversions(items),
        seconds=round(seconds, 3),
        items_per_second=round(len(processed) / seconds, 1) if seconds else 0.0,
        wait_ms_p50=percentile(waits, 0.5),
        wait_ms_p95=percentile(waits, 0.95),
        queries_per_item=round((counters["queries"] or 0) / len(processed), 2) if processed else 0.0,
        unprocessed=plan.items - len(processed),
        retries=counters["retries"] or 0,
        repeated_calls=one(REMOTE),
        kills=kills,
        may_repeat=kills * pattern.repeats,
        blocked_samples=sampler.blocked,
        stopped=stopped,
        share=dict(sorted(Counter(effect["worker"] for effect in effects).items())),
        waited_share=round(min(1.0, sampler.blocked / max(1, sampler.samples * plan.workers)), 3),
    )


def inversions(items: list[int]) -> int:
    """The number of items that began after a later item.

    >>> inversions([1, 2, 3]), inversions([2, 1, 3]), inversions([3, 1, 2])
    (0, 1, 2)
    """
    latest, found = 0, 0
    for item in items:
        found += item < latest
        latest = max(latest, item)
    return found


def percentile(ordered: list[float], share: float) -> float:
    """The value below which `share` of the values lie; 0 if there are none.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 0.5)
    3.0
    """
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 2) if ordered else 0.0


MOST_WAITS, WAITS_SHOWN = 100, 8  # the longest waits are stored with a run

# Only waiting sessions are asked for their blockers. A wait shorter than the sampling interval may be missing; the
# numbers of a run count all of them. All waits of one statement count as one: if a row changes repeatedly, each waiter
# follows it to its next version and waits again.
SAMPLE = """
WITH lock AS MATERIALIZED (
    SELECT pid, locktype, mode, granted, relation, page, tuple, waitstart FROM pg_locks
)
SELECT session.pid, pg_blocking_pids(session.pid) AS blockers, wanted.locktype, wanted.mode,
    coalesce(wanted.relation, place.relation)::regclass::text AS relation, place.page, place.tuple,
    extract(epoch FROM coalesce(wanted.waitstart, clock_timestamp()))::float8 AS since,
    extract(epoch FROM session.query_start)::float8 AS statement, extract(epoch FROM clock_timestamp())::float8 AS now
FROM pg_stat_activity AS session
JOIN lock AS wanted ON wanted.pid = session.pid AND NOT wanted.granted
LEFT JOIN lock AS place ON place.pid = session.pid AND place.locktype = 'tuple'
WHERE session.application_name = %(name)s::text AND session.datname = current_database()
  AND session.wait_event_type = 'Lock'
"""
# Each process records its pattern's session; a worker that replaces a killed one has another.
WORKERS = "SELECT item AS pid, worker FROM lab_ledger WHERE kind = 'session'"
START = """
SELECT extract(epoch FROM min(began))::float8 AS at FROM lab_ledger
WHERE kind IN ('effect', 'attempt', 'remote', 'start')
"""


@dataclass(frozen=True)
class Wait:
    """One wait; times in seconds, `began` from the start of the run. Numbers below 0 are outside lockers.

    `blockers`: all that were seen during the wait; None is a session outside the run.
    """

    worker: int | None
    blockers: tuple[int | None, ...]
    target: str
    began: float
    seconds: float

    @classmethod
    def from_json(cls, values: list[Any]) -> Self:
        worker, blockers, target, began, seconds = values
        return cls(worker, tuple(blockers), target, began, seconds)

    def as_json(self) -> list[Any]:
        """A short list, because a column may hold many of them."""
        return [self.worker, list(self.blockers), self.target, round(self.began, 3), round(self.seconds, 3)]

    @property
    def who(self) -> str:
        return worker_name(self.worker)

    @property
    def behind(self) -> str:
        return ", ".join(worker_name(blocker) for blocker in self.blockers)

    @property
    def milliseconds(self) -> int:
        return round(1000 * self.seconds)


@dataclass(frozen=True)
class Waits:
    """The waits of a run for its page, the longest first."""

    all: Sequence[Wait]

    @property
    def first(self) -> Sequence[Wait]:
        return self.all[:WAITS_SHOWN]

    @property
    def rest(self) -> Sequence[Wait]:
        return self.all[WAITS_SHOWN:]

    @property
    def hottest(self) -> str:
        """The target with the longest total wait."""
        return self._spent.most_common(1)[0][0]

    @property
    def hottest_ms(self) -> int:
        return round(1000 * self._spent.most_common(1)[0][1])

    @property
    def _spent(self) -> "Counter[str]":
        spent: Counter[str] = Counter()
        for wait in self.all:
            spent[wait.target] += wait.seconds  # type: ignore[assignment]
        return spent


def stored_waits(values: Sequence[list[Any]] | None) -> Waits | None:
    """The stored waits; None for a run from before they were stored."""
    if values is None:
        return None
    return Waits(sorted(map(Wait.from_json, values), key=lambda wait: -wait.seconds))


def worker_name(number: int | None) -> str:
    """The name of a process of a run, for people."""
    if number is None:
        return _("another session")
    return (
        _("worker %(number)d") % {"number": number} if number >= 0 else _("outsider %(number)d") % {"number": -number}
    )


@dataclass
class SampledWait:
    """A wait as sampled so far."""

    pid: int
    since: float
    until: float = 0.0
    place: str = ""
    row: str = ""
    blockers: set[int] = field(default_factory=set)


class WaitSampler:
    """Samples the sessions of one run over a connection that sees only the run's schema."""

    def __init__(self, connection: psycopg.Connection, application_name: str) -> None:
        self.connection = connection
        self.application_name = application_name
        self.found: dict[tuple[int, float], SampledWait] = {}
        self.samples = self.blocked = 0

    def sample(self) -> int:
        """Record current waits. Returns the number of waiting sessions."""
        self.samples += 1
        rows = fetch(self.connection, SAMPLE, {"name": self.application_name})
        rows = [row for row in rows if row["blockers"]]
        for row in rows:
            wait = self.found.setdefault((row["pid"], row["statement"]), SampledWait(row["pid"], row["since"]))
            wait.until = row["now"]
            wait.blockers.update(row["blockers"])
            wait.place = str(row["relation"] or row["locktype"])
        self._name([row for row in rows if not self.found[row["pid"], row["statement"]].row])
        self.blocked += len(rows)
        return len(rows)

    def _name(self, rows: Iterable[dict[str, Any]]) -> None:
        """Find the rows that are not known yet; a row may have moved before it could be read."""
        places = [row | {"locktype": "tuple"} for row in rows if row["tuple"] is not None]
        targets = rows_waited_for(self.connection, places) if places else {}
        for row in places:
            self.found[row["pid"], row["statement"]].row = str(targets.get(row["pid"], ""))

    def kept(self) -> list[Wait]:
        """The longest waits, in order of their start."""
        workers = {row["pid"]: row["worker"] for row in fetch(self.connection, WORKERS)}
        [start] = fetch(self.connection, START)
        longest = sorted(self.found.values(), key=lambda wait: wait.since - wait.until)[:MOST_WAITS]
        return [
            Wait(
                workers.get(wait.pid),
                tuple(dict.fromkeys(workers.get(pid) for pid in sorted(wait.blockers))),
                wait.row or wait.place,
                max(0.0, wait.since - (start["at"] or wait.since)),
                wait.until - wait.since,
            )
            for wait in sorted(longest, key=lambda wait: wait.since)
        ]
