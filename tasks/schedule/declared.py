"""Bring what code declares (`@task(schedule=…)`) into the table of schedules, at the start of each worker.

What an operator changed stays: each setting follows the code only while the row holds what the code said before.
"""

import json
import logging
import math
import time
from typing import Any

import psycopg

from tasks.diagnosis import lock_holders
from tasks.framework import declaration
from tasks.framework.declaration import PostgresTask
from tasks.schedule import declared, ticks
from tasks.support.database import Connection, execute, fetch, transaction
from tasks.support.recurrence import recurrence

logger = logging.getLogger(__name__)
GONE = "Its code no longer declares this schedule: declare it again, or delete it."
GROUPS = (("cron", "every_seconds", "timezone"), ("missed",), ("overlap",))  # columns that change together

# In one order, as several workers start at once.
LOCK_DECLARED = """
SELECT name, cron, every_seconds, timezone, missed, overlap, paused, paused_by, problem, declared::text AS declared,
    EXISTS (SELECT FROM tasks_worker WHERE stopped_at IS NULL AND schedule.name = ANY(task_paths)) AS is_known
FROM tasks_schedule AS schedule WHERE declared IS NOT NULL ORDER BY name FOR NO KEY UPDATE
"""
ADD = """
INSERT INTO tasks_schedule (name, task_path, cron, every_seconds, timezone, missed, overlap, declared)
SELECT name, name, declared ->> 'cron', (declared ->> 'every_seconds')::int, declared ->> 'timezone',
    declared ->> 'missed', declared ->> 'overlap', declared
FROM jsonb_each(%(declarations)s::jsonb) AS new (name, declared) ORDER BY name
ON CONFLICT (name) DO NOTHING
RETURNING name
"""
FOLLOW = """
UPDATE tasks_schedule SET cron = %(cron)s::text, every_seconds = %(every_seconds)s::int, timezone = %(timezone)s::text,
    missed = %(missed)s::text, overlap = %(overlap)s::text, paused = %(paused)s::boolean, problem = %(problem)s::text,
    declared = %(declared)s::jsonb
WHERE name = %(name)s::text
"""


def declarations() -> dict[str, dict[str, Any]]:
    """Return the declared settings of the functions known here, by path, which is the schedule's name."""
    tasks = (declaration.get(path) for path in declaration.paths())
    return {task.module_path: declared_by(task) for task in tasks if task.is_scheduled}


def declared_by(task: PostgresTask) -> dict[str, Any]:
    """The columns that the task's options declare."""
    found = recurrence(task.schedule, task.every, task.timezone)
    return {
        "cron": found.cron,
        "every_seconds": found.every_seconds,
        "timezone": found.timezone,
        "missed": task.missed,
        "overlap": task.overlap,
    }


def synchronise(connection: Connection) -> None:
    """Add, update, pause and resume declared schedules."""
    wanted = declarations()
    with transaction(connection):
        new = dict(wanted)
        for row in fetch(connection, LOCK_DECLARED):
            if declared := new.pop(row["name"], None):
                _follow(connection, row, declared)
            elif declaration.find(row["name"]) or not row["is_known"]:
                # Else a worker may run code of another version, which still declares it.
                ticks.break_off(connection, row["name"], GONE)
        added = {row["name"] for row in fetch(connection, ADD, {"declarations": json.dumps(new)})} if new else set()
    for name in new.keys() - added:
        logger.error("schedule %s was made by an operator: what the code declares under this name is ignored", name)


def _follow(connection: Connection, row: dict[str, Any], declared: dict[str, Any]) -> None:
    """Take over what the code now says, but for what an operator overrode."""
    before: dict[str, Any] = json.loads(row["declared"])
    after = {**row, "declared": declared}
    for group in GROUPS:
        if all(row[name] == before.get(name) for name in group):
            after |= {name: declared[name] for name in group}
    if row["problem"] == GONE:
        after |= {"problem": "", "paused": row["paused_by"] != ticks.OURS}
    if after != {**row, "declared": before}:
        execute(connection, FOLLOW, {**after, "declared": json.dumps(declared)})


NEVER = math.inf
RETRY_SECONDS = 1.0
LOG_SECONDS = 30.0


class Scheduler:
    """The part of a supervisor that ticks: it knows when the next tick is due, and wakes for it.

    `due_at`: when to tick, in `time.monotonic()`; `paths`: the functions that are known here."""

    def __init__(self) -> None:
        self.due_at = NEVER
        self.log_at = 0.0
        self.is_synchronised = False
        self.paths = declaration.paths()

    def expect(self, seconds: float | None) -> None:
        """Note in how many seconds the next tick is due; None without a schedule."""
        self.due_at = NEVER if seconds is None else time.monotonic() + seconds

    def tick(self, connection: psycopg.Connection) -> None:
        """Make the ticks that are due; the first time, also bring declared schedules into the table."""
        try:
            if not self.is_synchronised:
                declared.synchronise(connection)
                self.is_synchronised = True
                self.due_at = 0.0
            if time.monotonic() >= self.due_at:
                self.expect(ticks.tick(connection))
        except psycopg.errors.LockNotAvailable as error:
            self.expect(RETRY_SECONDS)
            if time.monotonic() >= self.log_at:
                logger.warning("schedules wait for a lock: %s", lock_holders.told(connection, error))
                self.log_at = time.monotonic() + LOG_SECONDS
