"""Let time go by in a test: waiting tasks, schedules and rates grow older, and what becomes due runs.

No clock is set: rows move into the past. These do: `run_after` and `created_at` of READY tasks, `next_at` of schedules,
and the rates' memory of their latest start. Nothing else does: tasks that have run, named locks, workers, rows of other
apps, and what `timezone.now()` says to a handler.
"""

from datetime import datetime, timedelta

from django.db import connection

from tasks.compat import TaskResult
from tasks.framework import declaration
from tasks.schedule import declared, ticks
from tasks.support.database import fetch, transaction
from tasks.testing import running

# Seconds, not days: those would follow daylight saving.
MOVE = """
WITH waiting AS (
    UPDATE tasks_task SET run_after = run_after - make_interval(secs => %(seconds)s::float8),
        created_at = created_at - make_interval(secs => %(seconds)s::float8)
    WHERE status = 'READY'
), rate AS (
    UPDATE tasks_bucket SET next_at = next_at - make_interval(secs => %(seconds)s::float8)
)
UPDATE tasks_schedule SET next_at = next_at - make_interval(secs => %(seconds)s::float8)
WHERE next_at IS NOT NULL
RETURNING name, next_at, next_at + make_interval(secs => %(seconds)s::float8) AS was_at
"""

MOVE_SCHEDULE = """
UPDATE tasks_schedule SET next_at = next_at + make_interval(secs => %(seconds)s::float8) WHERE name = %(name)s::text
RETURNING next_at, version
"""

# Seconds until something becomes due: a task, a schedule, or the next start of a rate.
NEXT_IN = """
SELECT extract(epoch FROM min(at) - statement_timestamp())::float8 AS seconds FROM (
    SELECT run_after AS at FROM tasks_task WHERE status = 'READY'
    UNION ALL
    SELECT next_at FROM tasks_schedule WHERE NOT paused AND ended_at IS NULL AND task_path = ANY(%(paths)s::text[])
    UNION ALL
    SELECT next_at FROM tasks_bucket
) AS event WHERE at > statement_timestamp()
"""

# How far a schedule has been moved, by its name and its `next_at` of now: a cron expression needs the true calendar.
# Rows that a test leaves are rolled back or emptied; the next test's have other times, so that nothing is to be reset.
_ahead: dict[tuple[str, datetime], float] = {}


def advance(duration: timedelta | None = None, *, limit: int | None = None, **units: float) -> list[TaskResult]:
    """Let so much time go by, `advance(hours=3)`, and run what becomes due, each at its time; returns the results.

    Schedules tick, those that code declares included, and failed tasks are tried again. `limit`: stop after so many
    tasks; without it more than 1000 raise RuntimeError.
    """
    left = (timedelta(**units) + (duration or timedelta())).total_seconds()
    if left < 0:
        raise ValueError("Time only goes forward: pass a duration of 0 s or more.")
    declared.synchronise(connection)
    results: list[TaskResult] = []
    while True:
        while _tick():
            pass
        results += running.run_due(None if limit is None else limit - len(results))
        if limit is None and len(results) > running.ENDLESS:
            raise RuntimeError(f"More than {running.ENDLESS} tasks ran in this time. Pass a limit, or less time.")
        if not left or len(results) == limit:
            return results
        next_in = fetch(connection, NEXT_IN, {"paths": declaration.paths()})[0]["seconds"]
        step = left if next_in is None else min(left, next_in)
        left -= step
        for row in fetch(connection, MOVE, {"seconds": step}):
            _ahead[row["name"], row["next_at"]] = step + _ahead.pop((row["name"], row["was_at"]), 0.0)


def _tick() -> bool:
    """Make one due tick, at its time in the calendar; False if none is due."""
    with transaction(connection):
        rows = fetch(connection, ticks.LOCK_DUE, {"paths": declaration.paths(), "passed": []})
        if not rows:
            return False
        [row] = rows
        name, seconds = row["name"], 0.0
        if row["next_at"] is not None:
            seconds = _ahead.pop((name, row["next_at"]), 0.0)
            row |= fetch(connection, MOVE_SCHEDULE, {"name": name, "seconds": seconds})[0]
            row["now"] = row["next_at"]
        ticks.advance(connection, row)
        [moved] = fetch(connection, MOVE_SCHEDULE, {"name": name, "seconds": -seconds})
        if moved["next_at"] is not None:
            _ahead[name, moved["next_at"]] = seconds
    return True
