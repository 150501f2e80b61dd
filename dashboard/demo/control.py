"""Control the director: its state, and requests to stop, kill one of its workers, or rebuild the lock chain.

Requests are notifications, which only a live director receives; none is left for a later one. Pages and commands can
ask for these three things only.
"""

import json
import re
import time
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from django.db import connection

from dashboard import demo
from tasks import audit
from tasks.audit import Change, Who
from tasks.database import fetch

STOP_SECONDS = 5.0
POLL_SECONDS = 0.05

# Channels and lock keys include the schema, like the queue's.
CHANNEL = "SELECT 'rowlock_demo_' || current_schema() AS name"
ASK = "SELECT pg_notify('rowlock_demo_' || current_schema(), %(payload)s::text)"
TAKE = "SELECT pg_try_advisory_lock(hashtext('rowlock:demo'), hashtext(current_schema())) AS taken"
# Always one row, with or without a director.
STATE = """
SELECT EXISTS (SELECT FROM dashboard_demorow) AS is_loaded, clock_timestamp() AS now,
    director.pid, director.since, director.since + make_interval(mins => %(minutes)s::int) AS ends_at
FROM (VALUES (1)) AS one (row) LEFT JOIN LATERAL (
    SELECT activity.pid, activity.backend_start AS since
    FROM pg_locks AS lock JOIN pg_stat_activity AS activity ON activity.pid = lock.pid
    WHERE lock.locktype = 'advisory' AND lock.objsubid = 2 AND lock.granted
      AND lock.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND lock.classid::bigint = (hashtext('rowlock:demo')::bigint & 4294967295)
      AND lock.objid::bigint = (hashtext(current_schema())::bigint & 4294967295)
) AS director ON true
"""
KILLS = """
SELECT intervention.id, intervention.at, intervention.actor, intervention.action
FROM tasks_intervention AS intervention
WHERE intervention.target = %(target)s::text AND intervention.action LIKE 'kill-worker %%'
ORDER BY intervention.id DESC LIMIT %(limit)s::int
"""
# The attempt's end is the time at which the worker was declared dead.
TAKEN_OVER = """
SELECT task.id, task.status, task.attempt, task.started_at, coalesce(task.claimed_by, task.finished_by) AS worker_id,
    attempt.worker_id AS lost_by, attempt.finished_at AS convicted_at
FROM tasks_task AS task JOIN tasks_attempt AS attempt ON attempt.task_id = task.id AND attempt.outcome = 'abandoned'
WHERE task.id = ANY(%(ids)s::bigint[])
"""
ACTION = re.compile(r"kill-worker worker=(\w+) task=(\d+)")
SHOWN = 5


class Request(StrEnum):
    """Requests to the director."""

    STOP = "stop"
    KILL = "kill"
    CHAIN = "chain"


@dataclass(frozen=True)
class Director:
    """The running director, and when it ends."""

    pid: int
    since: datetime
    ends_at: datetime
    now: datetime

    @property
    def remaining_seconds(self) -> float:
        return max(0.0, (self.ends_at - self.now).total_seconds())

    @property
    def mark(self) -> str:
        """Distinguishes this director from a later one with the same pid."""
        return f"{self.pid} {self.since.isoformat()}"


@dataclass(frozen=True)
class State:
    """The demo's state. `is_loaded`: rows of it exist; `director`: the running one, or None."""

    is_loaded: bool
    director: Director | None

    @property
    def is_there(self) -> bool:
        """True if this site has a demo at this moment."""
        return self.is_loaded or self.director is not None


@dataclass(frozen=True)
class Kill:
    """A worker of the demo that was killed at `at`; after `seconds` its task ran again, on worker `taken_by`.

    `convicted_seconds`: time until it was declared dead. Both are None until that has happened.
    """

    at: datetime
    actor: str
    worker_id: str
    task_id: int
    convicted_seconds: float | None = None
    seconds: float | None = None
    taken_by: str | None = None


def state() -> State:
    """The demo's state; one statement on `pg_locks` and the demo's list, not on the tables of its work."""
    [row] = fetch(connection, STATE, {"minutes": demo.MINUTES})
    is_loaded = row.pop("is_loaded")
    return State(is_loaded, None if row["pid"] is None else Director(**row))


def director() -> Director | None:
    return state().director


def ask(request: Request, who: Who) -> bool:
    """Send a request to the director; False if none runs. Repeating a request has no further effect."""
    if director() is None:
        return False
    with connection.cursor() as cursor:
        cursor.execute(ASK, {"payload": json.dumps({"do": request, "actor": who.actor, "source": who.source})})
    if request is not Request.KILL:  # the director itself records a kill, with time and worker
        audit.record(connection, who, f"demo-{request}", [Change(audit.queue(demo.REPORTS))])
    return True


def stop(who: Who) -> bool:
    """Ask the director to end and wait; False if it still runs after STOP_SECONDS."""
    deadline = time.monotonic() + STOP_SECONDS
    ask(Request.STOP, who)
    while director() is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def kills() -> list[Kill]:
    """The latest killed workers, and what happened to their tasks; latest first."""
    found = fetch(connection, KILLS, {"target": audit.queue(demo.PARCELS), "limit": SHOWN})
    known = [(row, match) for row in found if (match := ACTION.fullmatch(row["action"]))]
    ids = [int(match[2]) for _row, match in known]
    fates = {(row["id"], row["lost_by"]): row for row in fetch(connection, TAKEN_OVER, {"ids": ids})} if ids else {}
    return [_kill(row, match, fates.get((int(match[2]), match[1]))) for row, match in known]


def _kill(row: dict[str, Any], match: re.Match[str], fate: dict[str, Any] | None) -> Kill:
    kill = Kill(row["at"], row["actor"], match[1], int(match[2]))
    if fate is None:
        return kill
    kill = replace(kill, convicted_seconds=(fate["convicted_at"] - kill.at).total_seconds())
    if fate["worker_id"] is None or fate["started_at"] <= kill.at:
        return kill
    return replace(kill, seconds=(fate["started_at"] - kill.at).total_seconds(), taken_by=fate["worker_id"])
