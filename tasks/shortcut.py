"""The way past dead rows: what a claim remembers when the way from the beginning of the line was long.

Rows that are done stay in the index until VACUUM, and the beginning of the line is where they gather; a transaction
that is open for hours keeps even VACUUM away. Half a million of them made a claim of one task fifteen times as slow.
So after two slow claims in a row the next ones go on behind the last task, for some time that is counted in such
claims: the line is walked from its beginning again soon enough for a task that came in between, by its priority or its
time. A claim of many tasks is reason enough by itself: who drains a long queue leaves dead rows behind, which the next
claims would walk over. After 300,000 tasks that was two fifths of each claim.

Where the walk saw nothing due but the tasks of one queue and priority, it is itself what is saved, for the moment in
which the keys rest: beside 100,000 scheduled tasks a claim of one took 0.19 ms instead of 0.31.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tasks.database import Connection, fetch

if TYPE_CHECKING:
    from tasks.claimer import Claim

SLOW_SECONDS = 0.005
SECONDS_PER_TASK = 0.000_05  # what a row costs by itself, amply
TIMES = 10  # as long as so many claims from the beginning,
MOST_SECONDS = 5.0  # and no longer
MANY = 200  # in one claim: only tasks that end within a moment are claimed so many at a time
LARGE_BYTES = 4_000_000  # some 80,000 rows, dead or not

# The part of a claim that finds its candidates, as `tasks.line` and `tasks.claims.LOCKED` do from the beginning.
FOLLOWING = """
WITH candidate AS MATERIALIZED (
    SELECT id, row_number() OVER () AS place FROM (
        SELECT task.id FROM tasks_task AS task
        WHERE task.status = 'READY' AND task.ordering_key IS NULL
          AND task.queue_name = %(queue_name)s::text AND task.priority = %(priority)s::smallint
          AND (task.run_after, task.id) > (%(run_after)s::timestamptz, %(id)s::bigint)
          AND task.run_after <= statement_timestamp()
          AND NOT EXISTS (SELECT FROM tasks_queue WHERE name = %(queue_name)s::text AND paused)
        ORDER BY task.run_after, task.id LIMIT (SELECT %(limit)s::int) FOR NO KEY UPDATE SKIP LOCKED) AS due
)"""

SIZE = "SELECT coalesce(pg_relation_size(to_regclass('tasks_task_claim')), 0) AS size"


@dataclass(frozen=True, slots=True)
class Shortcut:
    """The last task without a key that was taken. `run_after` is PostgreSQL's text, `until` is `time.monotonic()`."""

    queue_name: str
    priority: int
    run_after: str
    id: int
    until: float

    @property
    def is_open(self) -> bool:
        return time.monotonic() < self.until

    def params(self, worker_id: str, limit: int) -> dict[str, Any]:
        """What a claim takes that begins with FOLLOWING."""
        return {
            "worker_id": worker_id,
            "limit": limit,
            "queue_name": self.queue_name,
            "priority": self.priority,
            "run_after": self.run_after,
            "id": self.id,
        }

    def behind(self, taken: Sequence["Claim"]) -> "Shortcut":
        """As long as this one, behind what was taken by it."""
        return replace(self, run_after=taken[-1].run_after, id=taken[-1].id)


def of_narrow_line(first: "Claim", until: float) -> Shortcut:
    """All that was due stands with this task: as long as the keys rest, the other queues and priorities do too."""
    return Shortcut(first.queue_name, first.priority, "-infinity", 0, until)


def is_slow(taken: Sequence["Claim"], seconds: float) -> bool:
    """Whether a claim from the beginning of the line took longer than these tasks account for."""
    return seconds > SLOW_SECONDS + SECONDS_PER_TASK * len(taken)


def beginning_behind(connection: Connection, taken: Sequence["Claim"], seconds: float) -> Shortcut | None:
    """What is to be remembered of a claim from the beginning of the line, which took these tasks in so many seconds.

    Nothing where the index is small: then the machine was busy, and the line is kept to strictly.
    """
    last = next((claim for claim in reversed(taken) if claim.ordering_key is None), None)
    if last is None or fetch(connection, SIZE)[0]["size"] < LARGE_BYTES:
        return None
    until = time.monotonic() + min(TIMES * seconds, MOST_SECONDS)
    return Shortcut(last.queue_name, last.priority, last.run_after, last.id, until)
