"""Expected commands and their intervals, so that a cron that silently stopped is reported as overdue."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from tasks.database import fetch
from tasks.locking.leases import observe

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
    held = {holder.name: holder for holder in observe.holders(running)} if running else {}
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
