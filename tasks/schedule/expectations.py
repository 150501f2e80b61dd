"""Expected commands and their intervals, so that a cron that silently stopped is reported as overdue."""

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from tasks.exceptions import LockUnavailable
from tasks.locking.named import backends
from tasks.locking.named.holder import Holder, Life, Waiter
from tasks.support.database import fetch

# The start times of a cron job vary with its machine's load.
GRACE_SHARE = 10
GRACE_LONGEST = timedelta(minutes=5)

EXPECT = """
INSERT INTO tasks_expectedcommand (name, every) VALUES (%(name)s::text, %(every)s::interval)
ON CONFLICT (name) DO UPDATE SET every = excluded.every WHERE tasks_expectedcommand.every <> excluded.every
"""

EXPECTED = """
SELECT expected.name, expected.every, expected.since, expected.succeeded_at, running.started_at AS running_since,
    running.fence AS running_fence, clock_timestamp() AS now
FROM tasks_expectedcommand AS expected LEFT JOIN LATERAL (
    SELECT run.started_at, run.fence FROM tasks_commandrun AS run
    WHERE run.name = expected.name AND run.outcome = 'running' ORDER BY run.id DESC LIMIT 1
) AS running ON true
ORDER BY expected.name
"""


@dataclass(frozen=True)
class Expectation:
    """One expected command. A run counts from its start, if it succeeded, or while it runs and holds its lock."""

    name: str
    every: timedelta
    since: datetime
    succeeded_at: datetime | None
    running_since: datetime | None
    now: datetime

    @property
    def next_at(self) -> datetime:
        """The time at which the next run should begin."""
        return max(at for at in (self.since, self.succeeded_at, self.running_since) if at) + self.every

    @property
    def grace(self) -> timedelta:
        return min(self.every / GRACE_SHARE, GRACE_LONGEST)

    @property
    def is_overdue(self) -> bool:
        return self.now > self.next_at + self.grace

    @property
    def overdue_seconds(self) -> float:
        """Seconds since the run should have begun, negative before that."""
        return (self.now - self.next_at).total_seconds()


def expect(name: str, every: timedelta) -> None:
    """From now on expect a run of this command once in each interval."""
    with connection.cursor() as cursor:
        params: dict[str, Any] = {"name": name, "every": every}
        cursor.execute(EXPECT, params)


def expectations() -> list[Expectation]:
    """Every expected command, by name."""
    rows = fetch(connection, EXPECTED)
    running = [row["name"] for row in rows if row["running_since"]]
    held = {holder.name: holder for holder in backends.holders(running)} if running else {}
    found = []
    for row in rows:
        holder = held.get(row["name"])
        fence = row.pop("running_fence")
        if holder is None or not holder.is_held or holder.is_gone or holder.fence != fence:
            row["running_since"] = None
        found.append(Expectation(**row))
    return found


def overdue() -> list[Expectation]:
    """Overdue commands, by name."""
    return [expectation for expectation in expectations() if expectation.is_overdue]


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
    seen = backends.everywhere()
    for holder in seen.holders:
        lines[holder.name].holders.append(holder)
    for waiter in seen.waiters:
        lines[waiter.name].waiters.append(waiter)
    ordered = sorted(lines.values(), key=lambda line: line.rank)
    return Board(ordered[:NAMES_SHOWN], problem or seen.problem, len(ordered) > NAMES_SHOWN)


def _add_expectations(lines: "defaultdict[str, Line]") -> str:
    try:
        for expectation in expectations():
            lines[expectation.name].expectation = expectation
    except LockUnavailable as error:
        return str(error)
    return ""


class _Lines(defaultdict[str, Line]):
    def __missing__(self, name: str) -> Line:
        self[name] = Line(name)
        return self[name]
