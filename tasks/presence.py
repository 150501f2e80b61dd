"""A worker's sign of life: an advisory lock that PostgreSQL drops the moment its session ends, and behind it a lease.

The lock is `(class of the schema, hash of the worker's id)` on the worker's own connection. A process killed with -9
loses it within milliseconds, so `pg_locks` tells who is there without any timeout. It does not tell everything:

- A frozen process, or a host that vanished, keeps its lock for a while. The lease convicts it: a `heartbeat_at` older
  than the worker's own `lease_seconds`.
- A restart of the database, or the crash of one backend, drops every lock at once while every worker lives. So the
  lock convicts only a worker that took it in this *epoch* and was missing in two looks; the others have one lease of
  grace, counted from when the epoch was first seen. An epoch is the postmaster's start together with the reset of the
  background writer's statistics: the first does not change when a single backend crashes, the second does. Who resets
  these statistics by hand begins a new epoch too, in which nobody lost anything; so each sweep confirms the workers
  whose locks it sees. A lock that is held now was held in this epoch, as no session outlives its epoch.

Only the database's clock is compared with itself.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from django.db import connection as default_connection

from tasks import conf
from tasks.database import Connection, fetch

SECOND_LOOK_SECONDS = 0.3

# A session does not outlive its epoch, so the token may be read in a statement of its own.
EPOCH = """
SELECT extract(epoch FROM pg_postmaster_start_time())::text || '/'
    || coalesce(extract(epoch FROM stats_reset), 0)::text AS token
FROM pg_stat_bgwriter
"""

# The first epoch ever seen gives no grace: before it, no session can have been lost in a restart. One that is known is
# not even locked: a worker that comes back must not wait for the end of a sweep.
SEE_EPOCH = """
INSERT INTO tasks_epoch (id, token, first_seen_at)
SELECT 1, %(token)s::text, to_timestamp(0) WHERE NOT EXISTS (SELECT FROM tasks_epoch WHERE token = %(token)s::text)
ON CONFLICT (id) DO UPDATE SET token = excluded.token, first_seen_at = clock_timestamp()
WHERE tasks_epoch.token <> excluded.token
"""

TAKE = "SELECT pg_try_advisory_lock(hashtext('rowlock:presence:' || current_schema()), hashtext(%(id)s::text))"

# A session whose client gave up a dead path is alive for the server until its own timeout, and holds the lock so long.
END_FORMER_SESSION = """
SELECT pg_terminate_backend(held.pid, 200) FROM pg_locks AS held JOIN pg_stat_activity AS session USING (pid)
WHERE held.locktype = 'advisory' AND held.objsubid = 2 AND held.granted AND held.pid <> pg_backend_pid()
  AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND held.classid::bigint = (hashtext('rowlock:presence:' || current_schema())::bigint & 4294967295)
  AND held.objid::bigint = (hashtext(%(id)s::text)::bigint & 4294967295)
  AND session.application_name = %(name)s::text
"""

# Zero rows: the worker was convicted meanwhile and may not come back under this id.
CONFIRM = """
UPDATE tasks_worker
SET presence_epoch = %(token)s::text, missing_since = NULL, heartbeat_at = clock_timestamp()
WHERE id = %(id)s::text AND stopped_at IS NULL
"""

# Only for workers whose lock was seen in the epoch of this token.
CONFIRM_AGAIN = """
WITH free AS MATERIALIZED (
    SELECT id FROM tasks_worker WHERE id = ANY(%(ids)s::text[]) AND stopped_at IS NULL
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE tasks_worker AS worker SET presence_epoch = %(token)s::text FROM free WHERE worker.id = free.id
"""

# A row that somebody has locked is left as it is and its worker not called convicted; the others must not wait for it.
BEAT = """
WITH free AS MATERIALIZED (
    SELECT id FROM tasks_worker WHERE id = ANY(%(ids)s::text[]) AND stopped_at IS NULL
    FOR NO KEY UPDATE SKIP LOCKED
), beaten AS (
    UPDATE tasks_worker AS worker SET heartbeat_at = clock_timestamp() FROM free WHERE worker.id = free.id
)
SELECT id FROM tasks_worker WHERE id = ANY(%(ids)s::text[]) AND stopped_at IS NULL
"""

# `objid` is unsigned: the key -5 stands there as 4294967291.
STATES = """
WITH held AS MATERIALIZED (
    SELECT objid::bigint AS key FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 2 AND granted
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND classid::bigint = (hashtext('rowlock:presence:' || current_schema())::bigint & 4294967295)
)
SELECT asked.id, worker.id IS NOT NULL AS registered,
    EXISTS (SELECT FROM held WHERE held.key = (hashtext(asked.id)::bigint & 4294967295)) AS held,
    worker.presence_epoch, %(token)s::text AS epoch,
    extract(epoch FROM clock_timestamp() - worker.heartbeat_at)::float8 AS heartbeat_age_seconds,
    coalesce(worker.lease_seconds, %(lease_seconds)s::float8) AS lease_seconds,
    extract(epoch FROM clock_timestamp() - worker.missing_since)::float8 AS missing_seconds,
    coalesce((SELECT CASE WHEN epoch.token = %(token)s::text
                     THEN extract(epoch FROM clock_timestamp() - epoch.first_seen_at)::float8 ELSE 0 END
              FROM tasks_epoch AS epoch), 'infinity')::float8 AS epoch_age_seconds,
    worker.hostname, worker.pid, worker.strategy, worker.queues, worker.task_paths, worker.started_at,
    worker.heartbeat_at, worker.missing_since, worker.stop_requested_at, worker.stopped_at, worker.stop_reason,
    worker.current_task_id, worker.current_since
FROM unnest(%(ids)s::text[]) AS asked (id) LEFT JOIN tasks_worker AS worker ON worker.id = asked.id
"""

# A loose scan: one step of the index for each distinct holder, however many rows each holds.
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


class Life(StrEnum):
    """What is known of a worker's life; only DEAD lets anybody take its tasks."""

    ALIVE = "alive"  # presence held, heartbeat within its lease
    SILENT = "silent"  # presence held, no heartbeat for a lease, and the grace of a restart is still running
    MISSING = "missing"  # presence gone; a second look decides
    RESTARTED = "restarted"  # presence lost with the database's restart; it has a lease of grace to come back
    DEAD = "dead"


@dataclass(frozen=True)
class WorkerState:
    """One worker as the database saw it at one moment; ages and leases in seconds."""

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

    @property
    def life(self) -> Life:
        """The one decision on who is dead, used by recovery, pages and commands alike."""
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
        """Taken in this epoch and not held now. Lost with an earlier epoch, its absence proves nothing."""
        return self.presence_epoch == self.epoch and not self.held

    @property
    def is_held_anew(self) -> bool:
        """Held in this epoch, but taken in an earlier one: without a new confirmation its loss would prove nothing."""
        return self.held and self.presence_epoch is not None and self.presence_epoch != self.epoch

    @property
    def is_dead(self) -> bool:
        return self.life is Life.DEAD

    @property
    def is_alive(self) -> bool:
        return self.life is Life.ALIVE

    @property
    def is_late(self) -> bool:
        """Half its lease without a sign of life, which is renewed in a third: its supervisor is frozen or cut off."""
        return (self.heartbeat_age_seconds or 0) > self.lease_seconds / 2

    @property
    def is_lease_over(self) -> bool:
        return (self.heartbeat_age_seconds or 0) > self.lease_seconds

    @property
    def grace_seconds(self) -> float:
        """How long the lease may not convict yet, because the database restarted a moment ago."""
        return max(0.0, self.lease_seconds - self.epoch_age_seconds)


def take(connection: Connection, worker_id: str) -> bool:
    """Take the presence lock on the worker's own session; False when that key is taken: choose another id."""
    with connection.cursor() as cursor:
        cursor.execute(TAKE, {"id": worker_id})
        return bool(cursor.fetchone()[0])


def take_again(connection: Connection, worker_id: str) -> bool:
    """Take the presence lock on a new session, and end the former session of this worker if that holds it still.

    Were the former session left to its own timeout, the lock would be free for a moment at any time after that, and
    two looks of a sweep would take the worker for dead. False: try again soon.
    """
    if take(connection, worker_id):
        return True
    fetch(connection, END_FORMER_SESSION, {"id": worker_id, "name": f"rowlock:worker:{worker_id}"})
    return take(connection, worker_id)


def confirm(connection: Connection, worker_id: str) -> bool:
    """Record that presence was taken in this epoch; False when the worker has been convicted meanwhile."""
    token = see_epoch(connection)
    with connection.cursor() as cursor:
        cursor.execute(CONFIRM, {"id": worker_id, "token": token})
        return bool(cursor.rowcount)


def confirm_again(connection: Connection, held: Sequence[WorkerState]) -> list[str]:
    """Record that these workers, whose locks one look has seen, hold presence in its epoch. Gives their ids."""
    ids = [state.id for state in held]
    with connection.cursor() as cursor:
        cursor.execute(CONFIRM_AGAIN, {"ids": ids, "token": held[0].epoch})
    return ids


def see_epoch(connection: Connection) -> str:
    """Note the epoch when it is new, so that its grace runs from now; gives its token."""
    token: str = fetch(connection, EPOCH)[0]["token"]
    with connection.cursor() as cursor:
        cursor.execute(SEE_EPOCH, {"token": token})
    return token


def beat(connection: Connection, worker_ids: Iterable[str]) -> set[str]:
    """Renew the leases of these workers; the ids that are missing from the answer have been convicted."""
    return {row["id"] for row in fetch(connection, BEAT, {"ids": list(worker_ids)})}


def known_ids(connection: Connection) -> list[str]:
    """Every id that holds a PROCESSING row, registered or not, and every worker that has not stopped."""
    return [row["id"] for row in fetch(connection, KNOWN_IDS)]


def states(ids: Iterable[str] | None = None, connection: Connection | None = None) -> dict[str, WorkerState]:
    """The state of each worker in `ids` (None: of `known_ids`), at one moment.

    The list of ids is read before the locks, never in one statement with them: locks are not part of a snapshot, and
    a worker born in between would be seen by its claim but not by its lock.
    """
    connection = connection or default_connection
    asked = known_ids(connection) if ids is None else list(ids)
    token = fetch(connection, EPOCH)[0]["token"]
    rows = fetch(connection, STATES, {"ids": asked, "token": token, "lease_seconds": conf.get("LEASE_SECONDS")})
    return {row["id"]: WorkerState(**row) for row in rows}
