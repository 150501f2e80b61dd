"""Asking the director: whether it runs and until when, to stop, to kill a worker of its own, to build the chain anew.

Requests are notifications, which only a living director hears; nothing is left for a later one. Whoever asks from a
page or a shell can make it do these three things and no other.
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

# Channels and keys carry the schema, as those of the queue do.
CHANNEL = "SELECT 'rowlock_demo_' || current_schema() AS name"
ASK = "SELECT pg_notify('rowlock_demo_' || current_schema(), %(payload)s::text)"
TAKE = "SELECT pg_try_advisory_lock(hashtext('rowlock:demo'), hashtext(current_schema())) AS taken"
# One row, whether a director runs or not.
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
# The attempt tells when the dead worker was convicted.
TAKEN_OVER = """
SELECT task.id, task.status, task.attempt, task.started_at, coalesce(task.claimed_by, task.finished_by) AS worker_id,
    attempt.worker_id AS lost_by, attempt.finished_at AS convicted_at
FROM tasks_task AS task JOIN tasks_attempt AS attempt ON attempt.task_id = task.id AND attempt.outcome = 'abandoned'
WHERE task.id = ANY(%(ids)s::bigint[])
"""
ACTION = re.compile(r"kill-worker worker=(\w+) task=(\d+)")
SHOWN = 5


class Request(StrEnum):
    """What the director can be asked for."""

    STOP = "stop"
    KILL = "kill"
    CHAIN = "chain"


@dataclass(frozen=True)
class Director:
    """The director that runs, and until when."""

    pid: int
    since: datetime
    ends_at: datetime
    now: datetime

    @property
    def remaining_seconds(self) -> float:
        return max(0.0, (self.ends_at - self.now).total_seconds())

    @property
    def mark(self) -> str:
        """Tells this director from any later one, even one with the same process id."""
        return f"{self.pid} {self.since.isoformat()}"


@dataclass(frozen=True)
class State:
    """Say if any row of the demo is there, and who directs it now."""

    is_loaded: bool
    director: Director | None

    @property
    def is_there(self) -> bool:
        """True if this site has a demo at this moment."""
        return self.is_loaded or self.director is not None


@dataclass(frozen=True)
class Kill:
    """A worker of the demo that was killed at `at`; `seconds` later its task began again, on worker `taken_by`.

    `convicted_seconds`: when the others knew that it was dead. Both are None until that has happened.
    """

    at: datetime
    actor: str
    worker_id: str
    task_id: int
    convicted_seconds: float | None = None
    seconds: float | None = None
    taken_by: str | None = None


def state() -> State:
    """One statement, on `pg_locks` and the list of what the demo made; it does not touch the tables of its work."""
    [row] = fetch(connection, STATE, {"minutes": demo.MINUTES})
    is_loaded = row.pop("is_loaded")
    return State(is_loaded, None if row["pid"] is None else Director(**row))


def director() -> Director | None:
    """The director of this database, or None when none runs."""
    return state().director


def ask(request: Request, who: Who) -> bool:
    """Asks the director; False when none runs. It does what it has not done already, so asking twice does no more."""
    if director() is None:
        return False
    with connection.cursor() as cursor:
        cursor.execute(ASK, {"payload": json.dumps({"do": request, "actor": who.actor, "source": who.source})})
    if request is not Request.KILL:  # the director tells of that one, when and whom
        audit.record(connection, who, f"demo-{request}", [Change(audit.queue(demo.REPORTS))])
    return True


def stop(who: Who) -> bool:
    """Asks the director to end and waits until it has; False when it still runs after a few seconds."""
    deadline = time.monotonic() + STOP_SECONDS
    ask(Request.STOP, who)
    while director() is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def kills() -> list[Kill]:
    """The workers killed last, and what became of their tasks; latest first."""
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
