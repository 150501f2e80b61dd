"""The history of lock waits: a thread samples them into a table, and a page reads them back.

A wait is one row; later samples only move its end. Each waiting session has one row, naming the blocker above it in the
tree: a queue of fifty is fifty rows, not 1225. The tree of any past moment can be drawn from these rows. A wait shorter
than the sampling interval may be missing.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg
from django.db import connection

from dashboard import table_sizes
from dashboard.locks import activity
from dashboard.locks.attribution import RunningTask, running_tasks, task_behind
from dashboard.locks.limits import Names, limited
from dashboard.locks.tree import Lock, Node, Session, TreeLine, build_tree, outsider, tree_lines
from dashboard.models import LockWait
from tasks.exceptions import PooledSession
from tasks.operations.prune import History
from tasks.support.database import Connection, fetch, own_session, session_name

PAGE = 50
TREE_CAP = 500
SLOTS = 240
WAITS_COUNTED = 5000
SAMPLE_SECONDS = 3.0  # a wait counts as going on for this long after its last sample

WAITS = """
SELECT * FROM dashboard_lockwait
WHERE tstzrange(waiting_since, last_seen, '[]') && tstzrange(%(since)s::timestamptz, %(until)s::timestamptz, '[]')
  AND (%(before)s::bigint IS NULL OR id < %(before)s::bigint)
ORDER BY id DESC LIMIT %(limit)s::int
"""

# The sessions that waited in each slot of a time span. A long wait is counted in every slot that it touches.
BLOCKED = """
WITH wait AS MATERIALIZED (
    SELECT blocked_pid, waiting_since,
        greatest(0, floor(extract(epoch FROM waiting_since - %(since)s::timestamptz) / %(slot)s::float8))::int AS begun,
        least(%(slots)s::int - 1,
              floor(extract(epoch FROM last_seen - %(since)s::timestamptz) / %(slot)s::float8))::int AS ended
    FROM dashboard_lockwait
    WHERE tstzrange(waiting_since, last_seen, '[]') && tstzrange(%(since)s::timestamptz, %(until)s::timestamptz, '[]')
    ORDER BY id DESC LIMIT %(limit)s::int
)
SELECT slot.number, count(DISTINCT wait.blocked_pid) AS blocked, max(wait.waiting_since) AS at
FROM wait CROSS JOIN LATERAL generate_series(wait.begun, wait.ended) AS slot (number)
GROUP BY slot.number
"""

DEADLOCKS = """
SELECT coalesce(sum(number), 0)::bigint AS number FROM dashboard_deadlocks
WHERE at BETWEEN %(since)s::timestamptz AND %(until)s::timestamptz
"""

LATEST_SAMPLE = (
    "SELECT max(last_seen) AS at FROM (SELECT last_seen FROM dashboard_lockwait ORDER BY id DESC LIMIT 50) AS waits"
)

# The latest row stays, because the next count starts from its total.
PRUNE_DEADLOCKS = """
WITH doomed AS MATERIALIZED (
    SELECT id FROM dashboard_deadlocks
    WHERE at < statement_timestamp() - %(age)s::interval AND id < (SELECT max(id) FROM dashboard_deadlocks)
    ORDER BY id LIMIT %(window)s::int FOR UPDATE SKIP LOCKED
), deleted AS (
    DELETE FROM dashboard_deadlocks USING doomed WHERE dashboard_deadlocks.id = doomed.id
    RETURNING dashboard_deadlocks.id
)
SELECT 0 AS last_id, count(*) AS deleted, count(*) = %(window)s::int AS is_old FROM deleted
"""

HISTORY = (
    History.of_ended("lock_waits", "dashboard_lockwait", "last_seen"),
    History("deadlocks", "dashboard_deadlocks", PRUNE_DEADLOCKS),
)


@dataclass(frozen=True)
class Past:
    """Locks around one moment. `before`: key of the next, older page, or None."""

    tree: list[TreeLine]
    waits: list[LockWait]
    deadlocks: int
    before: int | None


def latest_sample() -> datetime | None:
    """The time of the latest sample that found a wait; None if there is none."""
    with limited(connection):
        at: datetime | None = fetch(connection, LATEST_SAMPLE)[0]["at"]
    return at


@dataclass(frozen=True)
class Blocked:
    """The number of sessions that waited in each of SLOTS equal parts of a time, and a moment at which most did."""

    counts: list[int]
    most: int = 0
    most_at: datetime | None = None


def blocked_over(since: datetime, until: datetime) -> Blocked:
    """The blocked sessions over this time, from its newest waits only."""
    slot = (until - since).total_seconds() / SLOTS
    window = {"since": since, "until": until, "slot": slot, "slots": SLOTS, "limit": WAITS_COUNTED}
    with limited(connection):
        found = {row["number"]: row for row in fetch(connection, BLOCKED, window)}
    if not found:
        return Blocked([0] * SLOTS)
    counts = [found[number]["blocked"] if number in found else 0 for number in range(SLOTS)]
    busiest = max(found.values(), key=lambda row: (row["blocked"], row["number"]))
    return Blocked(counts, busiest["blocked"], max(busiest["at"], since + timedelta(seconds=slot * busiest["number"])))


def look_back(at: datetime, around: timedelta, *, before: int | None = None) -> Past:
    """The tree at `at`, and the waits and deadlocks within `around` before and after it.

    `before` continues the list of waits below this id. Three statements, each with an index and a limit.
    """
    window = {"since": at - around, "until": at + around}
    moment = {"since": at - timedelta(seconds=SAMPLE_SECONDS), "until": at, "before": None, "limit": TREE_CAP}
    with limited(connection):
        page = list(LockWait.objects.raw(WAITS, {**window, "before": before, "limit": PAGE + 1}))
        return Past(
            tree=tree_at(at, LockWait.objects.raw(WAITS, moment)),
            waits=page[:PAGE],
            deadlocks=fetch(connection, DEADLOCKS, window)[0]["number"],
            before=page[PAGE - 1].pk if len(page) > PAGE else None,
        )


def tree_at(at: datetime, standing: Iterable[LockWait]) -> list[TreeLine]:
    """Rebuild the tree of that time from the waits that were going on."""
    waits = {wait.blocked_pid: wait for wait in sorted(standing, key=lambda wait: wait.pk)}
    sessions: dict[int, Session] = {}
    for wait in waits.values():
        sessions.setdefault(wait.blocker_pid, blocker_of(wait, at))
    for pid, wait in waits.items():
        blocked_by, query = (wait.blocker_pid,), wait.blocked_query
        sessions[pid] = Session(pid, wait.blocked_who, state="active", query=query, blocked_by=blocked_by)
    locks = [
        Lock(
            pid=wait.blocked_pid,
            locktype=wait.locktype,
            mode=wait.mode,
            granted=False,
            name=wait.target,
            wait_seconds=(at - wait.waiting_since).total_seconds(),
        )
        for wait in waits.values()
    ]
    return tree_lines(build_tree(sessions.values(), locks))


def blocker_of(wait: LockWait, at: datetime) -> Session:
    age = (at - wait.blocker_since).total_seconds() if wait.blocker_since else None
    if wait.blocker_pid <= 0:
        return outsider(wait.blocker_pid, wait.blocker_who, age)
    return Session(
        pid=wait.blocker_pid,
        application_name=wait.blocker_who,
        state=wait.blocker_state,
        query=wait.blocker_query,
        transaction_seconds=age,
    )


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
KEEP_WAITS = """
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
        with limited(self.connection), self.connection.cursor() as cursor:
            [glance] = fetch(self.connection, GLANCE)
            if glance["deadlocks"] != self.deadlocks:
                cursor.execute(COUNT_DEADLOCKS, {"total": glance["deadlocks"]})
                self.deadlocks = glance["deadlocks"]
            if not glance["is_somebody_waiting"]:
                return 0
            waits = list(waits_of_tree(activity.read(self.connection).roots))[:MOST_WAITS]
            if waits:
                tasks = running_tasks(Names(self.connection))
                rows = [row_of(*wait, tasks) for wait in waits]
                cursor.execute(KEEP_WAITS, {"waits": json.dumps(rows, default=str)})
            return len(waits)


def waits_of_tree(roots: Iterable[Node]) -> Iterator[tuple[Session, Session, Lock]]:
    """Each wait of the tree: the session above, the waiting one, and its lock; nearest to a root first."""
    level = list(roots)
    while level:
        for above in level:
            for node in above.blocked:
                if node.waits_for and node.waits_for.since:
                    yield above.session, node.session, node.waits_for
        level = [node for above in level for node in above.blocked]


def row_of(blocker: Session, blocked: Session, lock: Lock, tasks: dict[str | int, RunningTask]) -> dict[str, Any]:
    """One wait as a row of the history."""
    pair = (blocked.pid, blocked.backend_start, blocker.pid, blocker.backend_start, lock.since)
    return {
        "pair": " ".join(part.isoformat() if isinstance(part, datetime) else str(part) for part in pair),
        "waiting_since": lock.since,
        "locktype": lock.locktype,
        "mode": lock.mode,
        "target": lock.target,
        "blocked_pid": blocked.pid,
        "blocked_who": who_of(blocked),
        "blocked_task": task_of(blocked, tasks),
        "blocked_query": blocked.query[:QUERY_LENGTH],
        "blocker_pid": blocker.pid,
        "blocker_who": who_of(blocker),
        "blocker_task": task_of(blocker, tasks),
        "blocker_state": blocker.state or "",
        "blocker_query": blocker.query[:QUERY_LENGTH],
        "blocker_since": blocker.xact_start,
    }


def who_of(session: Session) -> str:
    """A name from which a page can tell its kind later: the application's name if it has one."""
    if session.request:
        return session_name("web", session.request)
    return session.application_name or str(session.identity)


def task_of(session: Session, tasks: dict[str | int, RunningTask]) -> int | None:
    task = task_behind(session, tasks)
    return task.id if task else None


EVERY_SECONDS = 2.0
ASK_AGAIN_SECONDS = 15.0
CHORES_SECONDS = 10.0

ELECT = "SELECT pg_try_advisory_lock(hashtext('rowlock:sampler'), hashtext(current_schema())) AS elected"


class SamplingThread(threading.Thread):
    """Samples while this process is elected, until stopped.

    `chores`: what else the elected process does every CHORES_SECONDS.
    """

    def __init__(
        self,
        *chores: Callable[[Connection], object],
        every_seconds: float = EVERY_SECONDS,
        ask_again_seconds: float = ASK_AGAIN_SECONDS,
    ) -> None:
        super().__init__(name="lock history", daemon=True)
        self.chores = chores
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
        with own_session(session_name("web", "sampler"), connect_timeout=5) as connection:
            if not fetch(connection, ELECT)[0]["elected"]:
                return
            sampler, sweep_at = Sampler(connection), 0.0
            while not self.stopping.is_set():
                sampler.sample()
                if time.monotonic() >= sweep_at:
                    for chore in (*self.chores, table_sizes.sample):
                        chore(connection)
                    sweep_at = time.monotonic() + CHORES_SECONDS
                self.stopping.wait(self.every_seconds)

    def stop(self) -> None:
        """Ask it to end after the current sample."""
        self.stopping.set()
