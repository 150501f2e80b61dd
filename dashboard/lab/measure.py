"""The numbers of a run: effects by worker and item, lock waits, and the result."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple, Self

import psycopg
from django.utils.translation import gettext as _

from dashboard.lab.patterns.pattern import SLOTS, Pattern
from dashboard.lab.worker import Plan
from dashboard.locks.activity import rows_waited_for
from tasks.support.database import Connection, fetch

# The first effects of a run are the most telling, because all processes meet there. The numbers count all effects.
# A running run is drawn again each second, so only its latest are read. An open span ends now.
FIRST_SPANS, LATEST_SPANS = 1500, 300
SPANS = """
WITH start AS (SELECT min(began) AS at FROM lab_ledger WHERE kind IN ('effect', 'attempt', 'remote', 'start')),
line AS (
    SELECT *, kind = 'effect' AND row_number() OVER (PARTITION BY kind, item ORDER BY id) > 1 AS is_duplicate,
        row_number() OVER (PARTITION BY kind ORDER BY id) AS place,
        row_number() OVER (PARTITION BY kind ORDER BY id DESC) AS place_from_end
    FROM lab_ledger WHERE kind IN (%(work)s::text, 'kill')
)
SELECT worker, item, kind, round(extract(epoch FROM began - start.at), 4)::float8 AS began,
    round(extract(epoch FROM coalesce(ended, clock_timestamp()) - start.at), 4)::float8 AS ended,
    round((wait_ms / 1000)::numeric, 4)::float8 AS wait, is_duplicate
FROM line, start WHERE place <= %(first)s::int OR place_from_end <= %(latest)s::int ORDER BY id
"""


class Span(NamedTuple):
    """A stretch of a worker's time; seconds from the start of the run. `wait`: seconds waited before it.

    A column keeps it as a list.
    """

    worker: int
    item: int | None
    kind: str
    began: float
    ended: float
    wait: float
    is_duplicate: bool


def read_spans(connection: Connection, work: str, *, first: int = 0, latest: int = 0) -> list[Span]:
    """The first and latest spans of a run, and its kills; `connection` sees only its schema.

    `work`: the kind of the lines that tell of its work.
    """
    return [Span(**row) for row in fetch(connection, SPANS, {"work": work, "first": first, "latest": latest})]


# Each line has the wait since the previous one; an account's attempts between two effects have waits of their own.
EFFECTS = """
WITH line AS (
    SELECT id, kind, worker, item, began, sum(wait_ms) OVER (PARTITION BY worker ORDER BY id) AS waited
    FROM lab_ledger WHERE worker >= 0
)
SELECT worker, item, began, waited - coalesce(lag(waited) OVER (PARTITION BY worker ORDER BY id), 0) AS wait_ms
FROM line WHERE kind = 'effect' ORDER BY began, id
"""
# Every line repeats the counters, which only grow, so each process's largest values are its last.
SUMS = """
WITH last AS (
    SELECT max(lost_races) AS lost_races, max(retries) AS retries, max(queries) AS queries
    FROM lab_ledger WHERE worker >= 0 GROUP BY worker, process
)
SELECT coalesce(extract(epoch FROM max(coalesce(ended, began)) FILTER (WHERE kind IN ('effect', 'attempt', 'remote'))
        - min(began) FILTER (WHERE kind IN ('effect', 'attempt', 'remote'))), 0)::float8 AS seconds,
    count(*) FILTER (WHERE kind = 'lost') AS lost,
    count(*) FILTER (WHERE kind = 'remote') - count(DISTINCT item) FILTER (WHERE kind = 'remote') AS repeated_calls,
    (SELECT coalesce(sum(lost_races), 0)::int FROM last) AS lost_races,
    (SELECT coalesce(sum(retries), 0)::int FROM last) AS retries,
    (SELECT coalesce(sum(queries), 0)::int FROM last) AS queries
FROM lab_ledger
"""
# How many effects ran at once. After each kill or cut, the time until all slots were in use again. An effect without
# an end was ended with the run, so its slot has not leaked.
AT_ONCE = """
WITH step AS (
    SELECT began AS at, 1 AS step FROM lab_ledger WHERE kind = 'effect'
    UNION ALL
    SELECT ended, -1 FROM lab_ledger WHERE kind = 'effect' AND ended IS NOT NULL
), running AS MATERIALIZED (
    SELECT at, sum(step) OVER (ORDER BY at, step) AS number FROM step
), fault AS (
    SELECT ended AS at, (
        SELECT min(running.at) FROM running WHERE running.at > lab_ledger.ended AND running.number >= %(slots)s::int
    ) AS again
    FROM lab_ledger WHERE kind IN ('kill', 'cut')
)
SELECT (SELECT coalesce(max(number), 0)::int FROM running) AS most_at_once,
    (SELECT count(*)::int FROM lab_ledger WHERE kind = 'effect' AND ended IS NULL) AS unended,
    CASE WHEN count(*) = count(again) THEN round(max(1000 * extract(epoch FROM again - at)))::int END AS refill_ms
FROM fault
"""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The numbers of one run; times in the unit of their name."""

    pattern: str
    items: int
    processed: int  # items with an effect
    duplicates: int  # effects beyond the first of each item
    lost_updates: int  # acknowledged writes that are missing
    lost_work: int  # discarded results, and items with an effect that are not marked as done
    lost_races: int  # candidates that another worker took first
    order_inversions: int  # effects that began after one of a later item
    seconds: float
    items_per_second: float
    wait_ms_p50: float  # time in statements and locks that may have to wait, per effect
    wait_ms_p95: float
    queries_per_item: float
    unprocessed: int  # items without any effect when the run ended
    retries: int
    repeated_calls: int  # slow calls beyond the first of each item
    kills: int
    may_repeat: int  # effects that the kills may have repeated in a pattern that keeps its promise
    blocked_samples: int  # sessions of the run that waited for a lock, summed over all samples
    stopped: str = ""  # the reason if the run was ended early
    share: dict[int, int] = field(default_factory=dict)  # effects by worker
    guarded: dict[str, Any] | None = None  # the numbers with the guard that the pattern lacks, if it lacks one
    waited_share: float = 0.0  # the share of all workers' time in which they waited for a lock, as sampled, 0 to 1
    cuts: int = 0  # sessions that were ended in the middle of an effect
    slots: int = 0  # the limit that the pattern keeps; 0 if it keeps none, as are the next three
    most_at_once: int = 0  # effects that ran at the same time
    leaked_slots: int = 0  # that are taken although everybody has ended
    refill_ms: int | None = 0  # the longest time from a kill or cut until all slots were in use; None: never again

    @property
    def is_clean(self) -> bool:
        """True if nothing was lost, left or leaked, no limit passed, and no more repeated than the kills explain."""
        lost = self.lost_updates or self.lost_work or self.unprocessed or self.stopped
        return self.duplicates <= self.may_repeat and not (lost or self.leaked_slots or self.over_the_limit)

    @property
    def faults(self) -> int:
        return self.kills + self.cuts

    @property
    def over_the_limit(self) -> int:
        """How many more than the limit ran at once."""
        return max(0, self.most_at_once - self.slots)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"is_clean": self.is_clean}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The stored numbers; fields that a later version added are 0."""
        known: dict[str, Any] = {field.name: values.get(field.name, 0) for field in fields(cls)}
        return cls(**known)


def measure(
    connection: psycopg.Connection,
    plan: Plan,
    pattern: Pattern,
    sampler: "WaitSampler",
    *,
    kills: int,
    cuts: int,
    stopped: str,
) -> Result:
    """Read the ledger and the rows of a finished run; `connection` sees only its schema."""
    effects, [sums] = fetch(connection, EFFECTS), fetch(connection, SUMS)
    items = [effect["item"] for effect in effects]
    processed = set(items)
    done = {key for (key,) in connection.execute(pattern.rows.done)}
    seconds = sums["seconds"]
    return Result(
        pattern=plan.pattern,
        items=plan.items,
        processed=len(processed),
        duplicates=len(items) - len(processed),
        lost_updates=lost_updates(connection, pattern),
        lost_work=sums["lost"] + len(processed - done),
        lost_races=sums["lost_races"],
        order_inversions=inversions(items),
        seconds=round(seconds, 3),
        items_per_second=round(len(processed) / seconds, 1) if seconds else 0.0,
        queries_per_item=round(sums["queries"] / len(processed), 2) if processed else 0.0,
        unprocessed=plan.items - len(processed),
        retries=sums["retries"],
        repeated_calls=sums["repeated_calls"],
        kills=kills,
        cuts=cuts,
        may_repeat=(kills + cuts) * pattern.repeats,
        stopped=stopped,
        share=dict(sorted(Counter(effect["worker"] for effect in effects).items())),
        **waits_of(effects, sampler, plan.workers),
        **slots_of(connection, pattern),
    )


def lost_updates(connection: psycopg.Connection, pattern: Pattern) -> int:
    """Return how many acknowledged writes are missing."""
    [(acknowledged,)], [(kept,)] = (
        connection.execute(statement).fetchall() for statement in (pattern.rows.acknowledged, pattern.rows.kept)
    )
    return max(0, int(acknowledged) - int(kept))


def waits_of(effects: list[dict[str, Any]], sampler: "WaitSampler", workers: int) -> dict[str, Any]:
    """Return the fields of the result about waits."""
    waits = sorted(effect["wait_ms"] for effect in effects)
    return {
        "wait_ms_p50": percentile(waits, 0.5),
        "wait_ms_p95": percentile(waits, 0.95),
        "blocked_samples": sampler.blocked,
        "waited_share": round(min(1.0, sampler.blocked / max(1, sampler.samples * workers)), 3),
    }


def slots_of(connection: psycopg.Connection, pattern: Pattern) -> dict[str, Any]:
    """The numbers of a pattern that keeps a limit; none for others."""
    if not pattern.taken:
        return {}
    [counted], [(taken,)] = fetch(connection, AT_ONCE, {"slots": SLOTS}), connection.execute(pattern.taken).fetchall()
    leaked = max(0, taken - counted.pop("unended"))
    return {"slots": SLOTS, "leaked_slots": leaked, **counted}


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


class Wait(NamedTuple):
    """One wait; times in seconds, `began` from the start of the run. Numbers below 0 are outside lockers.

    `blockers`: all that were seen during the wait; None is a session outside the run. A column keeps it as a list.
    """

    worker: int | None
    blockers: Sequence[int | None]
    target: str
    began: float
    seconds: float

    @property
    def who(self) -> str:
        return worker_name(self.worker)

    @property
    def behind(self) -> str:
        return ", ".join(worker_name(blocker) for blocker in self.blockers)

    @property
    def milliseconds(self) -> int:
        return round(1000 * self.seconds)


class Waits(NamedTuple):
    """The waits of a run for its page, the longest first; `hottest`: the target with the longest total wait."""

    first: Sequence[Wait]
    rest: Sequence[Wait]
    hottest: str
    hottest_ms: int


def stored_waits(values: Sequence[list[Any]] | None) -> Waits | None:
    """The stored waits; None for a run from before they were stored."""
    if values is None:
        return None
    waits = sorted((Wait(*value) for value in values), key=lambda wait: -wait.seconds)
    spent: Counter[str] = Counter()
    for wait in waits:
        spent[wait.target] += wait.milliseconds
    [(hottest, hottest_ms)] = spent.most_common(1) or [("", 0)]
    return Waits(waits[:WAITS_SHOWN], waits[WAITS_SHOWN:], hottest, hottest_ms)


def worker_name(number: int | None) -> str:
    """The name of a process of a run, for people."""
    if number is None:
        return _("another session")
    name = _("worker %(number)d") if number >= 0 else _("outsider %(number)d")
    return name % {"number": abs(number)}


@dataclass
class SampledWait:
    pid: int
    since: float
    until: float = 0.0
    target: str = ""
    is_row: bool = False
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
        rows = fetch(self.connection, SAMPLE, {"name": self.application_name})
        rows = [row for row in rows if row["blockers"]]
        waits = [self.found.setdefault(key_of(row), SampledWait(row["pid"], row["since"])) for row in rows]
        unnamed = [row | {"locktype": "tuple"} for row in rows if row["tuple"] is not None]
        unnamed = [row for row in unnamed if not self.found[key_of(row)].is_row]
        # A row may have moved before it could be read.
        names = rows_waited_for(self.connection, unnamed) if unnamed else {}
        for wait, row in zip(waits, rows, strict=True):
            wait.until = row["now"]
            wait.blockers.update(row["blockers"])
            if name := names.get(row["pid"]):
                wait.target, wait.is_row = str(name), True
            elif not wait.is_row:
                wait.target = str(row["relation"] or row["locktype"])
        self.samples += 1
        self.blocked += len(rows)
        return len(rows)

    def kept(self) -> list[Wait]:
        """The longest waits, in order of their start."""
        workers = {row["pid"]: row["worker"] for row in fetch(self.connection, WORKERS)}
        [start] = fetch(self.connection, START)
        longest = sorted(self.found.values(), key=lambda wait: wait.since - wait.until)[:MOST_WAITS]
        return [
            Wait(
                workers.get(wait.pid),
                list(dict.fromkeys(workers.get(pid) for pid in sorted(wait.blockers))),
                wait.target,
                round(max(0.0, wait.since - (start["at"] or wait.since)), 3),
                round(wait.until - wait.since, 3),
            )
            for wait in sorted(longest, key=lambda wait: wait.since)
        ]


def key_of(row: dict[str, Any]) -> tuple[int, float]:
    """All waits of one statement count as one."""
    return row["pid"], row["statement"]
