"""Runs of commands: their records, and which are expected, so that a silently stopped cron is reported as overdue."""

import logging
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any

from django.db import DatabaseError, InterfaceError, connection

from tasks.exceptions import LockUnavailable
from tasks.locking.named import backends
from tasks.locking.named.holder import Holder, Life, Waiter
from tasks.models import CommandRun, ExpectedCommand
from tasks.support.database import execute, fetch
from tasks.support.durations import StatementTimestamp
from tasks.support.reading import storable

logger = logging.getLogger(__name__)

# The start times of a cron job vary with its machine's load.
GRACE_SHARE = 10
GRACE_LONGEST = timedelta(minutes=5)
PERSIST_SECONDS = 15.0
RETRY_SECONDS = 0.5
RUNS_SHOWN = 8
SKIPPED = CommandRun.Outcome.SKIPPED
NAMES_SHOWN = 200

# A run begins with the lock held, so earlier ones that still count as running have died.
START = """
WITH dead AS (
    UPDATE tasks_commandrun SET outcome = 'abandoned', finished_at = clock_timestamp()
    WHERE name = %(name)s::text AND outcome = 'running'
)
INSERT INTO tasks_commandrun (name, argv, hostname, pid, fence, started_at)
VALUES (%(name)s::text, %(argv)s::text[], %(hostname)s::text, %(pid)s::int, %(fence)s::bigint, clock_timestamp())
RETURNING id
"""

# A loss that is noticed at the very end corrects the earlier row.
FINISH = """
WITH run AS (
    UPDATE tasks_commandrun
    SET outcome = %(outcome)s::text, exit_status = %(exit_status)s::int, output = %(output)s::text,
        finished_at = clock_timestamp()
    WHERE id = %(id)s::bigint RETURNING name, started_at, outcome
)
UPDATE tasks_expectedcommand AS expected SET succeeded_at = run.started_at
FROM run WHERE expected.name = run.name AND run.outcome = 'succeeded'
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

# The outcomes that need a person. A skipped run is none: the lock did its work.
BAD = (CommandRun.Outcome.FAILED, CommandRun.Outcome.LOST, CommandRun.Outcome.ABANDONED, CommandRun.Outcome.SIGNALLED)

# A loose index scan: one step for each name, however many runs it has.
RUNS = """
WITH RECURSIVE command (name) AS (
    (SELECT name FROM tasks_commandrun ORDER BY name LIMIT 1)
    UNION ALL
    SELECT (SELECT run.name FROM tasks_commandrun AS run WHERE run.name > command.name ORDER BY run.name LIMIT 1)
    FROM command WHERE command.name IS NOT NULL
)
SELECT run.id, run.name, run.outcome, run.exit_status, run.started_at, run.finished_at, clock_timestamp() AS now,
    extract(epoch FROM coalesce(run.finished_at, clock_timestamp()) - run.started_at)::float8 AS seconds
FROM (SELECT name FROM command WHERE name IS NOT NULL LIMIT %(names)s::int) AS command CROSS JOIN LATERAL (
    SELECT id, name, outcome, exit_status, started_at, finished_at
    FROM tasks_commandrun AS latest WHERE latest.name = command.name
    ORDER BY latest.id DESC LIMIT %(runs)s::int
) AS run
"""


def start(name: str, argv: Sequence[str], fence: int) -> int:
    """Record the start of a run under the lock with this fence; returns the id of its row."""
    run_id: int = fetch(connection, START, {**_here(name, argv), "fence": fence})[0]["id"]
    return run_id


def skip(name: str, argv: Sequence[str], holder: Holder | None, exit_status: int) -> None:
    """Record a run that did not begin, because the lock was held."""
    CommandRun.objects.create(
        **_here(name, argv),
        held_by=storable(holder.who) if holder else "",
        exit_status=exit_status,
        outcome=CommandRun.Outcome.SKIPPED,
        finished_at=StatementTimestamp(),
    )


def finish(run_id: int, outcome: str, exit_status: int, output: str) -> None:
    """Record the end of a run; if the database is unavailable for PERSIST_SECONDS, only log it."""
    params = {"id": run_id, "outcome": outcome, "exit_status": exit_status, "output": storable(output)}
    deadline = time.monotonic() + PERSIST_SECONDS
    while True:
        try:
            execute(connection, FINISH, params)
            return
        except (DatabaseError, InterfaceError) as error:
            connection.close()
            problem = " ".join(str(error).split())
        if time.monotonic() >= deadline:
            message = "run %s ended as %s with exit status %s, and that could not be kept"
            logger.error(message, run_id, outcome, exit_status)
            return
        logger.warning("the end of a run was not written, trying again: %s", problem)
        time.sleep(RETRY_SECONDS)


def _here(name: str, argv: Sequence[str]) -> dict[str, Any]:
    argv = [storable(word) for word in argv]
    return {"name": name, "argv": argv, "hostname": socket.gethostname(), "pid": os.getpid()}


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
    ExpectedCommand.objects.update_or_create(name=name, defaults={"every": every})


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


@dataclass
class Entry:
    """A command or lock by its name. `holders` has one entry for each backend that knows the name."""

    name: str
    expectation: Expectation | None = None
    runs: list[CommandRun] = field(default_factory=list)  # the latest first, with their `seconds` so far and `now`
    holders: list[Holder] = field(default_factory=list)
    waiters: list[Waiter] = field(default_factory=list)

    @property
    def is_overdue(self) -> bool:
        return self.expectation is not None and self.expectation.is_overdue

    @property
    def is_command(self) -> bool:
        return bool(self.runs) or self.expectation is not None

    @property
    def latest(self) -> CommandRun | None:
        return self.runs[0] if self.runs else None

    @property
    def oldest_first(self) -> list[CommandRun]:
        return self.runs[::-1]

    @property
    def failures(self) -> list[CommandRun]:
        """The failed runs since the latest success, the latest first; skipped runs do not count."""
        return list(takewhile(lambda run: run.outcome in BAD, (run for run in self.runs if run.outcome != SKIPPED)))

    @property
    def holder(self) -> Holder | None:
        """The lock's holder, also one that is gone."""
        return next((holder for holder in self.holders if holder.life is not Life.FREE), None)

    @property
    def rank(self) -> tuple[bool, bool, bool, str]:
        """Overdue first, then failed, then held locks."""
        return (not self.is_overdue, not self.failures, self.holder is None, self.name)


@dataclass(frozen=True)
class Board:
    """The entries, problems first; `problem` says which part could not be read."""

    entries: list[Entry]
    problem: str
    is_capped: bool

    @property
    def commands(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.is_command]

    @property
    def locks(self) -> list[Entry]:
        """Locks that are held or waited for, and free ones of which no command tells."""
        return [entry for entry in self.entries if entry.holder or entry.waiters or not entry.is_command]


def board() -> Board:
    """Every command that has run or is expected, and every lock that is held, waited for, or was recently held."""
    entries: dict[str, Entry] = {}

    def entry(name: str) -> Entry:
        return entries.setdefault(name, Entry(name))

    for run in CommandRun.objects.raw(RUNS, {"names": NAMES_SHOWN, "runs": RUNS_SHOWN}):
        entry(run.name).runs.append(run)
    problem = ""
    try:
        for expectation in expectations():
            entry(expectation.name).expectation = expectation
    except LockUnavailable as error:
        problem = str(error)
    seen = backends.everywhere()
    for holder in seen.holders:
        entry(holder.name).holders.append(holder)
    for waiter in seen.waiters:
        entry(waiter.name).waiters.append(waiter)
    ordered = sorted(entries.values(), key=lambda entry: entry.rank)
    return Board(ordered[:NAMES_SHOWN], problem or seen.problem, len(ordered) > NAMES_SHOWN)
