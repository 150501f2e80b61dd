"""Data for the page of scheduled commands and named locks: runs, expectations, holders and waiters."""

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime

from django.db import connection

from tasks.database import fetch
from tasks.exceptions import LockUnavailable
from tasks.locking.leases import observe
from tasks.locking.leases.holder import Holder, Life, Waiter
from tasks.schedule import expectations
from tasks.schedule.expectations import Expectation

RUNS_SHOWN = 5
NAMES_SHOWN = 200

# A loose index scan: one step for each name, however many runs it has.
RUNS = """
WITH RECURSIVE command (name) AS (
    (SELECT name FROM tasks_commandrun ORDER BY name LIMIT 1)
    UNION ALL
    SELECT (SELECT run.name FROM tasks_commandrun AS run WHERE run.name > command.name ORDER BY run.name LIMIT 1)
    FROM command WHERE command.name IS NOT NULL
)
SELECT run.id, run.name, run.outcome, run.exit_status, run.started_at, run.finished_at, run.fence,
    extract(epoch FROM coalesce(run.finished_at, clock_timestamp()) - run.started_at)::float8 AS seconds
FROM (SELECT name FROM command WHERE name IS NOT NULL LIMIT %(names)s::int) AS command CROSS JOIN LATERAL (
    SELECT id, name, outcome, exit_status, started_at, finished_at, fence
    FROM tasks_commandrun AS latest WHERE latest.name = command.name
    ORDER BY latest.id DESC LIMIT %(runs)s::int
) AS run
"""


@dataclass(frozen=True)
class Run:
    """One run of a command; `seconds` is its duration so far."""

    id: int
    name: str
    outcome: str
    exit_status: int | None
    started_at: datetime
    finished_at: datetime | None
    fence: int | None
    seconds: float


@dataclass
class Line:
    """All data for one name. `holders` has one entry for each backend that knows the name."""

    name: str
    expectation: Expectation | None = None
    runs: list[Run] = field(default_factory=list)
    holders: list[Holder] = field(default_factory=list)
    waiters: list[Waiter] = field(default_factory=list)

    @property
    def is_overdue(self) -> bool:
        return self.expectation is not None and self.expectation.is_overdue

    @property
    def holder(self) -> Holder | None:
        """The lock's holder, also one that is gone."""
        return next((holder for holder in self.holders if holder.life is not Life.FREE), None)

    @property
    def rank(self) -> tuple[bool, bool, str]:
        """Problems first, then held locks."""
        return (not self.is_overdue, self.holder is None, self.name)


@dataclass(frozen=True)
class Board:
    """The lines, problems first; `problem` says which part could not be read."""

    lines: list[Line]
    problem: str
    is_capped: bool


def look() -> Board:
    """Every command that has run or is expected, and every lock that is held, waited for, or was recently held."""
    lines: defaultdict[str, Line] = _Lines()
    for row in fetch(connection, RUNS, {"names": NAMES_SHOWN, "runs": RUNS_SHOWN}):
        lines[row["name"]].runs.append(Run(**row))
    problem = _add_expectations(lines)
    seen = observe.everywhere()
    for holder in seen.holders:
        lines[holder.name].holders.append(holder)
    for waiter in seen.waiters:
        lines[waiter.name].waiters.append(waiter)
    ordered = sorted(lines.values(), key=lambda line: line.rank)
    return Board(ordered[:NAMES_SHOWN], problem or seen.problem, len(ordered) > NAMES_SHOWN)


def _add_expectations(lines: "defaultdict[str, Line]") -> str:
    try:
        for expectation in expectations.expectations():
            lines[expectation.name].expectation = expectation
    except LockUnavailable as error:
        return str(error)
    return ""


class _Lines(defaultdict[str, Line]):
    def __missing__(self, name: str) -> Line:
        self[name] = Line(name)
        return self[name]
