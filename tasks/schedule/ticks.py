"""The tick: enqueue the task of a schedule and set its next time, in one transaction.

Every supervisor ticks. The row lock decides who does it, the schedule's version fences it, and a unique index over
(schedule, time) makes each time count once. Only the database's clock says what is due.
"""

import json
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import psycopg

from tasks.exceptions import KeyBusy, StaleVersion
from tasks.framework import declaration, payload
from tasks.framework.arguments import Inserted, encode_call
from tasks.framework.enqueue import insert_one
from tasks.models import HOLDS_ITS_KEY, Outcome, Schedule, TaskStatus
from tasks.support import reading
from tasks.support.database import Connection, execute, fetch, transaction
from tasks.support.recurrence import Recurrence
from tasks.support.redaction import redact

logger = logging.getLogger(__name__)

# A tick that comes later was missed, and `missed` says what becomes of it.
GRACE = timedelta(seconds=60)
BATCH = 100  # ticks of one schedule in one transaction
ROUND_SECONDS = 0.25  # of a supervisor's time before it looks after its workers again
RETRY_SECONDS = 1.0
OURS = "rowlock"
LONGEST_PROBLEM = 1000

# Seconds until a tick is due; none without a schedule.
DUE_IN = """
SELECT coalesce(extract(epoch FROM next_at - statement_timestamp()), 0)::float8 AS seconds
FROM tasks_schedule WHERE NOT paused AND ended_at IS NULL AND task_path = ANY(%(paths)s::text[])
ORDER BY next_at NULLS FIRST LIMIT 1
"""

# A supervisor leaves functions that it does not know to those that do, as two versions run during a deployment.
LOCK_DUE = """
SELECT name, task_path, jsonb_build_array(args, kwargs)::text AS call, queue_name, priority, cron, every_seconds,
    timezone, missed, overlap, ends_at, next_at, last_task_id, version, statement_timestamp() AS now
FROM tasks_schedule
WHERE NOT paused AND ended_at IS NULL AND (next_at IS NULL OR next_at <= statement_timestamp())
  AND task_path = ANY(%(paths)s::text[]) AND name <> ALL(%(passed)s::text[])
ORDER BY next_at NULLS FIRST LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
"""

# Asked for under the schedule's lock, in a statement of its own: joined, the task could be that of an earlier tick.
STATE = """
SELECT (SELECT status FROM tasks_task WHERE id = %(last_task_id)s::bigint) AS last_status,
    ARRAY(SELECT at FROM tasks_tick WHERE schedule_name = %(name)s::text AND at = ANY(%(times)s::timestamptz[])) AS done
"""

# The fence: the row as it was locked. Ticks, next time and outcome stand or fall together.
ADVANCE = """
WITH ticked AS (
    INSERT INTO tasks_tick (schedule_name, at, outcome, task_id, held_by_task_id, times)
    SELECT %(name)s::text, tick.at, tick.outcome, tick.task_id, tick.held_by_task_id, tick.times
    FROM jsonb_to_recordset(%(ticks)s::jsonb)
        AS tick (at timestamptz, outcome text, task_id bigint, held_by_task_id bigint, times int)
)
UPDATE tasks_schedule SET next_at = %(next_at)s::timestamptz,
    ended_at = CASE WHEN %(next_at)s::timestamptz IS NULL THEN statement_timestamp() END,
    last_at = coalesce(%(last_at)s::timestamptz, last_at),
    last_outcome = coalesce(%(last_outcome)s::text, last_outcome),
    last_task_id = coalesce(%(last_task_id)s::bigint, last_task_id),
    held_by_task_id = CASE WHEN %(last_outcome)s::text IS NULL THEN held_by_task_id ELSE %(held_by)s::bigint END,
    version = version + 1
WHERE name = %(name)s::text AND version = %(version)s::int
  AND next_at IS NOT DISTINCT FROM %(seen_next_at)s::timestamptz
RETURNING name
"""

BREAK = """
UPDATE tasks_schedule SET paused = true, problem = %(problem)s::text,
    paused_by = CASE WHEN paused THEN paused_by ELSE %(by)s::text END
WHERE name = %(name)s::text AND problem = '' RETURNING name
"""


@dataclass
class Made:
    """The ticks of one schedule in one transaction, and its next time."""

    ticks: list[dict[str, Any]] = field(default_factory=list)
    next_at: datetime | None = None

    def add(self, at: datetime, outcome: Outcome, *, task_id: int | None = None, **columns: Any) -> None:
        self.ticks.append({"at": at.isoformat(), "outcome": outcome.value, "task_id": task_id, **columns})


def due_in(connection: psycopg.Connection) -> float | None:
    """Seconds until the next tick, 0 or less if one is due; None if there is no schedule of a function known here."""
    rows = fetch(connection, DUE_IN, {"paths": declaration.paths()})
    return rows[0]["seconds"] if rows else None


def tick(connection: psycopg.Connection) -> float | None:
    """Make every tick that is due, for at most ROUND_SECONDS; returns the seconds until the next one.

    A schedule that cannot tick is paused with the reason. Raises psycopg.Error when the database is away or locked.
    """
    ends, passed = time.monotonic() + ROUND_SECONDS, list[str]()
    while tick_one(connection, passed):
        if time.monotonic() > ends:
            return 0.0
    seconds = due_in(connection)
    # What is due all the same is locked by another supervisor, or has to wait for a task.
    return seconds if seconds is None or seconds > 0 else RETRY_SECONDS


def tick_one(connection: psycopg.Connection, passed: list[str]) -> bool:
    """Deal with the schedule that has been due for longest and is not among `passed`; False if there is none."""
    row: dict[str, Any] | None = None
    try:
        with transaction(connection):
            rows = fetch(connection, LOCK_DUE, {"paths": declaration.paths(), "passed": passed})
            if not rows:
                return False
            row = rows[0]
            if not advance(connection, row):
                passed.append(row["name"])
    except (StaleVersion, KeyBusy):  # somebody else has dealt with it, or holds up its unique key
        passed.append(row["name"] if row else "")
    except (psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.ReadOnlySqlTransaction):
        raise
    except Exception as error:
        if row is None:
            raise
        passed.append(row["name"])
        problem = redact(f"It could not tick: {type(error).__name__}: {' '.join(str(error).split())}")
        logger.error("schedule %s is paused: %s", row["name"], problem)
        break_off(connection, row["name"], problem)
    return True


def break_off(connection: Connection, name: str, problem: str) -> bool:
    """Pause a schedule with the reason; False if it has one already."""
    problem = reading.clipped(problem, LONGEST_PROBLEM)
    return bool(fetch(connection, BREAK, {"name": name, "by": OURS, "problem": problem}))


def advance(connection: Connection, row: dict[str, Any]) -> bool:
    """Make the due ticks of a locked schedule, and set its next time; False if it has to wait for its last task."""
    recurrence = Recurrence(row["cron"], row["every_seconds"], row["timezone"])
    if row["next_at"] is None:
        write(connection, row, Made(next_at=recurrence.first(row["now"])))
        return True
    times = list(islice(_until_end(recurrence, row), BATCH))
    state = fetch(connection, STATE, {"last_task_id": row["last_task_id"], "name": row["name"], "times": times})[0]
    due = Due(connection, row, recurrence, set(state["done"]), state["last_status"])
    made = due.catch_up(times) if row["now"] - row["next_at"] > GRACE else due.each(times)
    if made.next_at == row["next_at"]:
        return False
    write(connection, row, made)
    return True


def _until_end(recurrence: Recurrence, row: dict[str, Any]) -> Iterator[datetime]:
    for at in recurrence.due(row["next_at"], row["now"]):
        if row["ends_at"] is not None and at > row["ends_at"]:
            return
        yield at


@dataclass
class Due:
    """The due times of one locked schedule: enqueues their tasks, and says what became of each time.

    `done`: times that have a tick already, because somebody has set the schedule back. `last_status`: that of its
    latest task, None if there is none.
    """

    connection: Connection
    row: dict[str, Any]
    recurrence: Recurrence
    done: set[datetime]
    last_status: str | None

    def each(self, times: list[datetime], *, waits: bool = False) -> Made:
        """One tick for each time; with `waits`, a time that would be skipped stays due."""
        made = Made()
        for at in times:
            if waits and self.is_held() and at not in self.done:
                made.next_at = at
                return made
            self._make(made, at)
        made.next_at = self.recurrence.following(times[-1])
        return made

    def catch_up(self, times: list[datetime]) -> Made:
        """Times that nobody has dealt with for longer than the grace, as `missed` says."""
        if self.row["missed"] == Schedule.Missed.ALL:
            return self.each(times, waits=True)
        first, now = times[0], self.row["now"]
        made = Made(next_at=self.recurrence.following_now(first, now))
        end = min(now, self.row["ends_at"] or now)
        number = self.recurrence.count_due(first, end)
        if self.row["missed"] == Schedule.Missed.ONCE:
            self._make(made, first, number)
        elif first not in self.done:
            made.add(first, Outcome.MISSED, times=number)
        return made

    def is_held(self) -> bool:
        """True if the latest task keeps the next one from being enqueued, as `overlap` says."""
        if self.row["overlap"] == Schedule.Overlap.QUEUE:
            return self.last_status == TaskStatus.READY
        return self.row["overlap"] == Schedule.Overlap.SKIP and self.last_status in HOLDS_ITS_KEY

    def _make(self, made: Made, at: datetime, number: int = 1) -> None:
        if at in self.done:
            return
        if self.is_held():
            made.add(at, Outcome.SKIPPED, held_by_task_id=self.row["last_task_id"], times=number)
            return
        task = enqueue(self.connection, self.row)
        if not task.is_new:  # another one has its unique key
            made.add(at, Outcome.SKIPPED, held_by_task_id=task.id, times=number)
            return
        made.add(at, Outcome.ENQUEUED, task_id=task.id, times=number)
        self.row["last_task_id"], self.last_status = task.id, TaskStatus.READY.value


def enqueue(connection: Connection, row: Mapping[str, Any]) -> Inserted:
    """Write the task of a schedule, a row of LOCK_DUE, or find the task that has its unique key.

    Unless its tasks may overlap, or have an ordering key or a limit of their own, one key makes them run one at a time:
    an index holds them to it, also beside one that was run by hand or requeued.
    """
    task = declaration.get(row["task_path"])
    has_own = task.ordering_key is not None or task.is_limited
    is_alone = row["overlap"] != Schedule.Overlap.ALLOW and not has_own
    key = f"schedule:{row['name']}" if is_alone else None
    task = task.using(queue_name=row["queue_name"], priority=row["priority"], ordering_key=key)
    return insert_one(task, encode_call(*payload.opened_call(*json.loads(row["call"]))), connection)


def write(connection: Connection, row: dict[str, Any], made: Made) -> None:
    """Write ticks and next time of a row of LOCK_DUE. Raises StaleVersion if it is not as it was read."""
    next_at = made.next_at
    if next_at is not None and row["ends_at"] is not None and next_at > row["ends_at"]:
        next_at = None
    last: dict[str, Any] = made.ticks[-1] if made.ticks else {}
    params = {
        "name": row["name"],
        "version": row["version"],
        "seen_next_at": row["next_at"],
        "ticks": json.dumps([{"times": 1, **tick} for tick in made.ticks]),
        "next_at": next_at,
        "last_at": last.get("at"),
        "last_outcome": last.get("outcome"),
        "last_task_id": row["last_task_id"],
        "held_by": last.get("held_by_task_id"),
    }
    if not execute(connection, ADVANCE, params):
        raise StaleVersion(f"Schedule {row['name']} changed while it ticked; nothing of that tick was kept.")
