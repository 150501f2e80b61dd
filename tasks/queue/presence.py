"""A worker's presence: an advisory lock that PostgreSQL drops when its session ends, with a lease as backup.

The lock is `(class of the schema, hash of the worker's id)` on the worker's own connection. A process killed with -9
loses it within milliseconds, so `pg_locks` shows the living workers without a timeout. Two cases need more:

- A frozen process, or a host that vanished, keeps its lock for a while. The lease convicts it: its `heartbeat_at` is
  older than its own `lease_seconds`.
- A restart of the database, or the crash of one backend, drops every lock at once while every worker lives. So the lock
  convicts only a worker that took it in this *epoch* and was missing in two checks. The others have one lease of grace
  from the first sight of the epoch.

An epoch is the postmaster's start plus the reset time of the background writer's statistics. Only the second changes
when a single backend crashes. A manual reset of these statistics begins a new epoch too, although no lock was lost. So
each sweep confirms the workers whose locks it sees. No session outlives its epoch, so a lock held now was held in this
epoch.

Times are compared only by the database's clock.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from django.db import connection as default_connection

from tasks import conf
from tasks.support.database import Connection, execute, fetch

SECOND_LOOK_SECONDS = 0.3
SLOW_SECONDS, TIMES_AS_LONG = 0.5, 20

# A session does not outlive its epoch, so a separate statement may read the token.
EPOCH = """
SELECT extract(epoch FROM pg_postmaster_start_time())::text || '/'
    || coalesce(extract(epoch FROM stats_reset), 0)::text AS token
FROM pg_stat_bgwriter
"""

# The first epoch ever seen gives no grace, because no restart before it can have ended a session. The row of a known
# epoch is not even locked, so that a returning worker never waits for a sweep.
SEE_EPOCH = """
INSERT INTO tasks_epoch (id, token, first_seen_at)
SELECT 1, %(token)s::text, to_timestamp(0) WHERE NOT EXISTS (SELECT FROM tasks_epoch WHERE token = %(token)s::text)
ON CONFLICT (id) DO UPDATE SET token = excluded.token, first_seen_at = clock_timestamp()
WHERE tasks_epoch.token <> excluded.token
"""

TAKE = "SELECT pg_try_advisory_lock(hashtext('rowlock:presence:' || current_schema()), hashtext(%(id)s::text)) AS taken"

# A client may give up a dead path and connect again. For the server the former session lives until its own timeout, and
# holds the lock until then.
END_FORMER_SESSION = """
SELECT pg_terminate_backend(held.pid, 200) FROM pg_locks AS held JOIN pg_stat_activity AS session USING (pid)
WHERE held.locktype = 'advisory' AND held.objsubid = 2 AND held.granted AND held.pid <> pg_backend_pid()
  AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND held.classid::bigint = (hashtext('rowlock:presence:' || current_schema())::bigint & 4294967295)
  AND held.objid::bigint = (hashtext(%(id)s::text)::bigint & 4294967295)
  AND session.application_name = %(name)s::text
"""

# It updates no row if the worker was convicted meanwhile: then it may not continue under this id.
CONFIRM = """
UPDATE tasks_worker
SET presence_epoch = %(token)s::text, missing_since = NULL, heartbeat_at = clock_timestamp()
WHERE id = %(id)s::text AND stopped_at IS NULL
"""

# A locked row is skipped, so that the others need not wait for it. Its worker does not count as convicted.
BEAT = """
WITH free AS MATERIALIZED (
    SELECT id FROM tasks_worker WHERE id = ANY(%(ids)s::text[]) AND stopped_at IS NULL
    FOR NO KEY UPDATE SKIP LOCKED
), beaten AS (
    UPDATE tasks_worker AS worker SET heartbeat_at = clock_timestamp() FROM free WHERE worker.id = free.id
)
SELECT id FROM tasks_worker WHERE id = ANY(%(ids)s::text[]) AND stopped_at IS NULL
"""

# `objid` is unsigned: the key -5 is stored as 4294967291.
STATES = """
WITH now AS MATERIALIZED (
    SELECT extract(epoch FROM pg_postmaster_start_time())::text || '/'
        || coalesce(extract(epoch FROM stats_reset), 0)::text AS token
    FROM pg_stat_bgwriter
), held AS MATERIALIZED (
    SELECT objid::bigint AS key FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 2 AND granted
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND classid::bigint = (hashtext('rowlock:presence:' || current_schema())::bigint & 4294967295)
)
SELECT asked.id, worker.id IS NOT NULL AS registered,
    EXISTS (SELECT FROM held WHERE held.key = (hashtext(asked.id)::bigint & 4294967295)) AS held,
    worker.presence_epoch, now.token AS epoch,
    extract(epoch FROM clock_timestamp() - worker.heartbeat_at)::float8 AS heartbeat_age_seconds,
    coalesce(worker.lease_seconds, %(lease_seconds)s::float8) AS lease_seconds,
    extract(epoch FROM clock_timestamp() - worker.missing_since)::float8 AS missing_seconds,
    coalesce((SELECT CASE WHEN epoch.token = now.token
                     THEN extract(epoch FROM clock_timestamp() - epoch.first_seen_at)::float8 ELSE 0 END
              FROM tasks_epoch AS epoch), 'infinity')::float8 AS epoch_age_seconds,
    worker.hostname, worker.pid, worker.strategy, worker.queues, worker.task_paths, worker.started_at,
    worker.heartbeat_at, worker.missing_since, worker.stop_requested_at, worker.stopped_at, worker.stop_reason,
    worker.current_task_id, worker.current_since, worker.running_ids
FROM now CROSS JOIN unnest(%(ids)s::text[]) AS asked (id) LEFT JOIN tasks_worker AS worker ON worker.id = asked.id
"""

# A loose index scan: one step for each distinct holder, however many rows each holds. Beside a transaction of hours it
# passes every row that was claimed meanwhile.
KNOWN_IDS = """
WITH RECURSIVE holder (id) AS (
    (SELECT claimed_by FROM tasks_task WHERE status = 'PROCESSING' ORDER BY claimed_by LIMIT 1)
    UNION ALL
    SELECT (SELECT task.claimed_by FROM tasks_task AS task
            WHERE task.status = 'PROCESSING' AND task.claimed_by > holder.id ORDER BY task.claimed_by LIMIT 1)
    FROM holder WHERE holder.id IS NOT NULL
)
SELECT id FROM holder WHERE id IS NOT NULL
UNION
SELECT id FROM tasks_worker WHERE stopped_at IS NULL
"""
UNSTOPPED_IDS = "SELECT id FROM tasks_worker WHERE stopped_at IS NULL"


class Life(StrEnum):
    """The state of a worker's life; only DEAD allows others to take its tasks."""

    ALIVE = "alive"  # presence held, heartbeat within its lease
    SILENT = "silent"  # presence held, no heartbeat for a lease, still within the grace after a restart
    MISSING = "missing"  # presence gone; a second check decides
    RESTARTED = "restarted"  # presence lost in the database's restart, still within its grace
    DEAD = "dead"


@dataclass(frozen=True)
class WorkerState:
    """One worker as the database showed it at one moment."""

    id: str
    registered: bool
    held: bool
    presence_epoch: str | None
    epoch: str
    heartbeat_age_seconds: float | None
    lease_seconds: float
    missing_seconds: float | None
    epoch_age_seconds: float
    hostname: str | None = None
    pid: int | None = None
    strategy: str | None = None
    queues: list[str] | None = None
    task_paths: list[str] | None = None
    started_at: datetime | None = None
    heartbeat_at: datetime | None = None
    missing_since: datetime | None = None
    stop_requested_at: datetime | None = None
    stopped_at: datetime | None = None
    stop_reason: str | None = None
    current_task_id: int | None = None
    current_since: datetime | None = None
    running_ids: list[int] | None = None

    @property
    def life(self) -> Life:
        """The only decision about who is dead, for recovery, pages and commands."""
        if not self.registered or self.stopped_at is not None:
            return Life.DEAD
        if self.is_presence_lost:
            return Life.DEAD if (self.missing_seconds or 0) >= SECOND_LOOK_SECONDS else Life.MISSING
        if self.is_lease_over and self.grace_seconds <= 0:
            return Life.DEAD
        if self.presence_epoch is not None and not self.held:
            return Life.RESTARTED
        return Life.SILENT if self.is_lease_over else Life.ALIVE

    @property
    def is_presence_lost(self) -> bool:
        """True if presence was taken in this epoch and is not held now. An earlier one's absence proves nothing."""
        return self.presence_epoch == self.epoch and not self.held

    @property
    def is_dead(self) -> bool:
        return self.life is Life.DEAD

    @property
    def is_alive(self) -> bool:
        return self.life is Life.ALIVE

    @property
    def is_late(self) -> bool:
        """No heartbeat for half a lease, although one is due every third: its supervisor is frozen or cut off."""
        return (self.heartbeat_age_seconds or 0) > self.lease_seconds / 2

    @property
    def is_lease_over(self) -> bool:
        return (self.heartbeat_age_seconds or 0) > self.lease_seconds

    @property
    def grace_seconds(self) -> float:
        """Seconds during which the lease cannot convict, because the database has just restarted."""
        return max(0.0, self.lease_seconds - self.epoch_age_seconds)

    def runs(self, task_id: int) -> bool:
        """True if this task is one of those that it has been running for a moment."""
        return task_id == self.current_task_id or task_id in (self.running_ids or ())

    def serves(self, queue_name: str) -> bool:
        """True if it claims from this queue; a worker without queues serves all."""
        return not self.queues or queue_name in self.queues


def take(connection: Connection, worker_id: str) -> bool:
    """Take the presence lock on the worker's own session. False if its key is taken: choose another id."""
    taken: bool = fetch(connection, TAKE, {"id": worker_id})[0]["taken"]
    return taken


def take_again(connection: Connection, worker_id: str) -> bool:
    """Take the presence lock on a new session, and end this worker's former session if it still holds the lock.

    If the former session ended by its own timeout, nobody would hold the lock for a moment. Two checks of a sweep would
    then take the worker for dead. False: try again soon.
    """
    if take(connection, worker_id):
        return True
    fetch(connection, END_FORMER_SESSION, {"id": worker_id, "name": f"rowlock:worker:{worker_id}"})
    return take(connection, worker_id)


def confirm(connection: Connection, worker_id: str) -> bool:
    """Record that presence was taken in this epoch; False when the worker was convicted meanwhile."""
    return bool(execute(connection, CONFIRM, {"id": worker_id, "token": see_epoch(connection)}))


def see_epoch(connection: Connection) -> str:
    """Record the epoch if it is new, so that its grace starts now; returns its token."""
    token = epoch(connection)
    execute(connection, SEE_EPOCH, {"token": token})
    return token


def epoch(connection: Connection) -> str:
    """The token of the epoch in which this session lives, from its beginning to its end."""
    token: str = fetch(connection, EPOCH)[0]["token"]
    return token


def beat(connection: Connection, worker_ids: Iterable[str]) -> set[str]:
    """Renew the leases of these workers; returns their ids without those that were convicted."""
    return {row["id"] for row in fetch(connection, BEAT, {"ids": list(worker_ids)})}


def known_ids(connection: Connection) -> list[str]:
    """The ids of workers that hold a PROCESSING row, registered or not, or that have not stopped."""
    return [row["id"] for row in fetch(connection, KNOWN_IDS)]


class KnownIds:
    """`known_ids` for one process: where it takes longer than SLOW_SECONDS, it is asked for a twentieth of the time.

    In between it returns who was known then, and whoever has not stopped since.
    """

    def __init__(self) -> None:
        self._ids: frozenset[str] = frozenset()
        self._ask_at = 0.0  # by `time.monotonic()`

    def __call__(self, connection: Connection) -> list[str]:
        """Raises what the statement raises, for instance its timeout; that was slow, too."""
        began = time.monotonic()
        if began < self._ask_at:
            self._ids |= {row["id"] for row in fetch(connection, UNSTOPPED_IDS)}
            return list(self._ids)
        try:
            self._ids = frozenset(known_ids(connection))
        finally:
            took = time.monotonic() - began
            self._ask_at = began + (took * TIMES_AS_LONG if took > SLOW_SECONDS else 0.0)
        return list(self._ids)


shown_ids = KnownIds()  # of the pages and commands of this process


def states(ids: Iterable[str] | None = None, connection: Connection | None = None) -> dict[str, WorkerState]:
    """The state of each worker in `ids` (None: of `known_ids`, or of `shown_ids` on Django's connection) at one moment.

    A separate statement reads the ids before the locks, because locks are not part of a snapshot. Otherwise a worker
    that starts in between could be seen by its claim but not by its lock.
    """
    if ids is None:
        ids = known_ids(connection) if connection else shown_ids(default_connection)
    connection, asked = connection or default_connection, list(ids)
    rows = fetch(connection, STATES, {"ids": asked, "lease_seconds": conf.get("LEASE_SECONDS")})
    return {row["id"]: WorkerState(**row) for row in rows}
