"""The lock waits of a run, by worker, blocker and row: sampled while it runs, and stored with it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import psycopg
from django.utils.translation import gettext as _

from dashboard.locks.activity import rows_waited_for
from tasks.support.database import fetch

MOST, SHOWN = 100, 8  # the longest waits are stored with a run

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
        return self.all[:SHOWN]

    @property
    def rest(self) -> Sequence[Wait]:
        return self.all[SHOWN:]

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


def read(values: Sequence[list[Any]] | None) -> Waits | None:
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
class Sampled:
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
        self.found: dict[tuple[int, float], Sampled] = {}
        self.looks = 0

    def sample(self) -> int:
        """Record current waits. Returns the number of waiting sessions."""
        self.looks += 1
        rows = fetch(self.connection, SAMPLE, {"name": self.application_name})
        rows = [row for row in rows if row["blockers"]]
        for row in rows:
            wait = self.found.setdefault((row["pid"], row["statement"]), Sampled(row["pid"], row["since"]))
            wait.until = row["now"]
            wait.blockers.update(row["blockers"])
            wait.place = str(row["relation"] or row["locktype"])
        self._name([row for row in rows if not self.found[row["pid"], row["statement"]].row])
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
        longest = sorted(self.found.values(), key=lambda wait: wait.since - wait.until)[:MOST]
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
