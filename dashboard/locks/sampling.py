"""Sample waits and deadlocks into the lock history.

A wait is one row; later samples only move its end. Each waiting session has one row, naming the blocker above it in the
tree: a queue of fifty is fifty rows, not 1225. The tree of any past moment can be drawn from these rows. A wait shorter
than the sampling interval may be missing.
"""

import json
import logging
import threading
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import psycopg

from dashboard.lab import schema
from dashboard.locks import activity
from dashboard.locks.activity import limited
from dashboard.locks.attribution import RunningTask, running_tasks
from dashboard.locks.sessions import Session
from dashboard.locks.tree import Node
from tasks.exceptions import PooledSession
from tasks.support.database import Connection, fetch, own_session

logger = logging.getLogger(__name__)

QUERY_LENGTH = 300
MOST_WAITS = 200  # in one sample

# The only query while nobody waits, once every few seconds.
GLANCE = """
SELECT deadlocks, EXISTS (
    SELECT FROM pg_stat_activity
    WHERE datname = current_database() AND (wait_event_type = 'Lock' OR backend_type IS NULL)
) OR EXISTS (SELECT FROM tasks_lockwaiter) AS is_somebody_waiting
FROM pg_stat_database WHERE datname = current_database()
"""

# A changed clock or a restart must not leave a wait that ends before it begins: the index on its range would refuse it.
KEEP = """
INSERT INTO dashboard_lockwait (
    pair, waiting_since, locktype, mode, target, blocked_pid, blocked_who, blocked_task, blocked_query,
    blocker_pid, blocker_who, blocker_task, blocker_state, blocker_query, blocker_since
)
SELECT pair, least(waiting_since, statement_timestamp()), locktype, mode, target, blocked_pid, blocked_who,
    blocked_task, blocked_query, blocker_pid, blocker_who, blocker_task, blocker_state, blocker_query, blocker_since
FROM jsonb_to_recordset(%(waits)s::jsonb) AS wait (
    pair text, waiting_since timestamptz, locktype text, mode text, target text,
    blocked_pid int, blocked_who text, blocked_task bigint, blocked_query text,
    blocker_pid int, blocker_who text, blocker_task bigint, blocker_state text, blocker_query text,
    blocker_since timestamptz
)
ON CONFLICT (pair) DO UPDATE SET
    last_seen = greatest(dashboard_lockwait.waiting_since, statement_timestamp()),
    target = excluded.target, blocker_state = excluded.blocker_state, blocker_query = excluded.blocker_query,
    blocked_task = coalesce(excluded.blocked_task, dashboard_lockwait.blocked_task),
    blocker_task = coalesce(excluded.blocker_task, dashboard_lockwait.blocker_task)
"""

# The counter restarts when statistics are reset; then its whole value is new.
COUNT_DEADLOCKS = """
INSERT INTO dashboard_deadlocks (number, total)
SELECT CASE WHEN latest.total IS NULL THEN 0
            WHEN latest.total > %(total)s::bigint THEN %(total)s::bigint
            ELSE %(total)s::bigint - latest.total END, %(total)s::bigint
FROM (VALUES (1)) AS one LEFT JOIN (SELECT total FROM dashboard_deadlocks ORDER BY id DESC LIMIT 1) AS latest ON true
WHERE latest.total IS DISTINCT FROM %(total)s::bigint
"""


class Sampler:
    """Takes samples over one connection; remembers the last written count of deadlocks."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.deadlocks: int | None = None

    def sample(self) -> int:
        """Record current waits. Returns their number. Raises psycopg.Error, or Django's DatabaseError."""
        with limited(self.connection):
            [glance] = fetch(self.connection, GLANCE)
            if glance["deadlocks"] != self.deadlocks:
                self._execute(COUNT_DEADLOCKS, {"total": glance["deadlocks"]})
                self.deadlocks = glance["deadlocks"]
            return self._keep_waits() if glance["is_somebody_waiting"] else 0

    def _keep_waits(self) -> int:
        seen = activity.look(self.connection)
        pairs = list(waits(seen.roots))[:MOST_WAITS]
        if pairs:
            tasks = running_tasks(self.connection)
            rows = [row_of(blocker, node, tasks) for blocker, node in pairs]
            self._execute(KEEP, {"waits": json.dumps(rows, default=str)})
        return len(pairs)

    def _execute(self, statement: str, params: dict[str, Any]) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, params)


def waits(roots: Iterable[Node]) -> Iterator[tuple[Session, Node]]:
    """Waits of the tree whose start is known, with the session above each; nearest to a root first."""
    level = list(roots)
    while level:
        for above in level:
            for node in above.blocked:
                if node.waits_for and node.waits_for.since:
                    yield above.session, node
        level = [node for above in level for node in above.blocked]


def row_of(blocker: Session, node: Node, tasks: dict[str, RunningTask]) -> dict[str, Any]:
    """One wait as a row of the history."""
    lock, blocked = node.waits_for, node.session
    assert lock
    assert lock.since
    return {
        "pair": pair(blocked, blocker, lock.since),
        "waiting_since": lock.since,
        "locktype": lock.locktype,
        "mode": lock.mode,
        "target": lock.target,
        "blocked_pid": blocked.pid,
        "blocked_who": name(blocked),
        "blocked_task": task_id(blocked, tasks),
        "blocked_query": blocked.query[:QUERY_LENGTH],
        "blocker_pid": blocker.pid,
        "blocker_who": name(blocker),
        "blocker_task": task_id(blocker, tasks),
        "blocker_state": blocker.state or "",
        "blocker_query": blocker.query[:QUERY_LENGTH],
        "blocker_since": blocker.xact_start,
    }


def pair(blocked: Session, blocker: Session, since: datetime) -> str:
    parts = (blocked.pid, blocked.backend_start, blocker.pid, blocker.backend_start, since)
    return " ".join(part.isoformat() if isinstance(part, datetime) else str(part) for part in parts)


def name(session: Session) -> str:
    """A name from which a page can tell its kind later: the application's name if it has one."""
    if session.request:
        return f"rowlock:web:{session.request}"
    return session.application_name or str(session.identity)


def task_id(session: Session, tasks: dict[str, RunningTask]) -> int | None:
    task = tasks.get(session.identity.name) if session.identity.kind == "worker" else None
    return task.id if task else None


EVERY_SECONDS = 2.0
ASK_AGAIN_SECONDS = 15.0
LAB_SECONDS = 10.0  # between two searches for schemas without a run

ELECT = "SELECT pg_try_advisory_lock(hashtext('rowlock:sampler'), hashtext(current_schema())) AS elected"


class SamplingThread(threading.Thread):
    """Samples while this process is elected, until stopped."""

    def __init__(self, every_seconds: float = EVERY_SECONDS, ask_again_seconds: float = ASK_AGAIN_SECONDS) -> None:
        super().__init__(name="lock history", daemon=True)
        self.every_seconds = every_seconds
        self.ask_again_seconds = ask_again_seconds
        self.stopping = threading.Event()

    def run(self) -> None:
        """Serve, and retry later after an error: the database is away, read-only, not migrated or too slow."""
        problem = ""
        while not self.stopping.is_set():
            try:
                self.serve()
            except (psycopg.Error, PooledSession) as error:
                before, problem = problem, str(error).strip().partition("\n")[0]
                if problem != before:  # a standby would log the same four times a minute
                    logger.warning("the lock history pauses: %s", problem)
            self.stopping.wait(self.ask_again_seconds)

    def serve(self) -> None:
        """Sample for as long as the session lasts; return at once if another process is elected.

        Raises psycopg.Error or PooledSession.
        """
        with own_session("rowlock:web:sampler", connect_timeout=5) as connection:
            if not fetch(connection, ELECT)[0]["elected"]:
                return
            sampler, sweep_at = Sampler(connection), 0.0
            while not self.stopping.is_set():
                sampler.sample()
                if time.monotonic() >= sweep_at:
                    schema.sweep(connection)
                    sweep_at = time.monotonic() + LAB_SECONDS
                self.stopping.wait(self.every_seconds)

    def stop(self) -> None:
        """Ask it to end after the current sample."""
        self.stopping.set()
