"""A worker's options, the tasks that its processes may claim together, the connections they need, and their rows."""

import logging
import mmap
import multiprocessing
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from tasks import conf
from tasks.exceptions import TooFewConnections
from tasks.framework import declaration
from tasks.queue.strategies import DEFAULT_STRATEGY, STRATEGIES
from tasks.support.database import fetch

logger = logging.getLogger(__name__)

NO_LIMIT = 1 << 62
LOCK_SECONDS = 1.0
FOR_SUPERVISOR = 1
LEAST = FOR_SUPERVISOR + 1  # and one process, whose handlers do not use the database

# Superusers have no limit but the server's. Sessions of others show their database and role to everybody.
LIMITS = """
WITH me AS (
    SELECT oid, rolname, rolsuper, rolconnlimit FROM pg_roles WHERE rolname = session_user
), other AS (
    SELECT usesysid, datname FROM pg_stat_activity
    WHERE datid IS NOT NULL AND pid <> pg_backend_pid() AND coalesce(backend_type, 'client backend') = 'client backend'
)
SELECT 'max_connections' AS name, (SELECT count(*) FROM other) AS used,
    current_setting('max_connections')::int - CASE WHEN rolsuper THEN 0
        ELSE current_setting('superuser_reserved_connections')::int
            + coalesce(current_setting('reserved_connections', true)::int, 0) END AS allowed
FROM me
UNION ALL
SELECT format('the limit of role %%s', rolname), (SELECT count(*) FROM other WHERE usesysid = me.oid), rolconnlimit
FROM me WHERE rolconnlimit >= 0 AND NOT rolsuper
UNION ALL
SELECT format('the limit of database %%s', datname), (SELECT count(*) FROM other WHERE datname = own.datname),
    datconnlimit
FROM pg_database AS own CROSS JOIN me WHERE own.datname = current_database() AND datconnlimit >= 0 AND NOT rolsuper
"""
REGISTER = """
INSERT INTO tasks_worker (id, hostname, pid, strategy, queues, task_paths, lease_seconds)
VALUES (%(id)s, %(hostname)s, %(pid)s, %(strategy)s, %(queues)s::text[], %(task_paths)s::text[], %(lease_seconds)s)
"""
LEAVE = """
UPDATE tasks_worker SET stopped_at = clock_timestamp(), stop_reason = 'stopped', current_task_id = NULL
WHERE id = %(id)s AND stopped_at IS NULL
"""


@dataclass(frozen=True)
class Options:
    """`queues` None: every queue; `batch_size` and `max_tasks` None: no limit but the strategy's own."""

    queues: list[str] | None = None
    strategy: str = DEFAULT_STRATEGY
    concurrency: int = 1
    batch_size: int | None = None
    burst: bool = False
    max_tasks: int | None = None

    @property
    def largest_batch(self) -> int:
        return min(self.batch_size or NO_LIMIT, STRATEGIES[self.strategy].max_batch)


class Allowance:
    """How many tasks may still be claimed, counted over all children of one supervisor; None: as many as there are."""

    def __init__(self, tasks: int | None) -> None:
        self._is_limited = tasks is not None
        self._left = memoryview(mmap.mmap(-1, 8)).cast("q")
        self._left[0] = tasks or 0
        self._lock = multiprocessing.get_context("fork").Lock()

    def take(self, wanted: int) -> int:
        """As many of `wanted` as are left."""
        if not self._is_limited:
            return wanted
        with self._locked():
            granted = max(0, min(wanted, self._left[0]))
            self._left[0] -= granted
        return granted

    def give_back(self, number: int) -> None:
        if self._is_limited and number:
            with self._locked():
                self._left[0] += number

    @property
    def is_spent(self) -> bool:
        return self._is_limited and self._left[0] <= 0

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # A process that was killed while it held the lock keeps it for ever; the others go on without.
        is_ours = self._lock.acquire(timeout=LOCK_SECONDS)
        try:
            yield
        finally:
            if is_ours:
                self._lock.release()


@dataclass(frozen=True)
class Limit:
    """A limit by its name, how many sessions it allows us, and how many of them others use."""

    name: str
    allowed: int
    used: int

    @property
    def free(self) -> int:
        return max(0, self.allowed - self.used)

    def __str__(self) -> str:
        return f"{self.name} allows {self.allowed}, of which {self.used} are in use"


def check(connection: psycopg.Connection, options: Options) -> None:
    """Log one line when the sessions of this worker may not fit. Raises TooFewConnections when it can never run.

    `connection` is not counted: it ends before the worker opens its own.
    """
    needed = most_sessions(options)
    tightest = min((Limit(**row) for row in fetch(connection, LIMITS, {})), key=lambda limit: limit.free)
    if tightest.allowed < LEAST:
        raise TooFewConnections(f"A worker needs {LEAST} connections at least, and {tightest}.")
    if tightest.free < needed:
        logger.warning(
            "this worker opens up to %s connections, and %s are free: %s; raise it, or start fewer processes",
            needed, tightest.free, tightest,
        )  # fmt: skip


def most_sessions(options: Options) -> int:
    """The most sessions that this supervisor and its processes open, beside those of named locks.

    A process has its own, a second one to write with while there is much to do, and that of its handlers, unless a
    pooling proxy lends it one.
    """
    writes_apart = STRATEGIES[options.strategy].joins_flush
    through_proxy = bool(conf.get("DIRECT_DATABASE_URL"))
    return FOR_SUPERVISOR + options.concurrency * (1 + writes_apart + (not through_proxy))


def register(connection: psycopg.Connection, worker_id: str, options: Options) -> None:
    """Insert the worker's row; a worker that claims without one is taken for dead."""
    connection.execute(
        REGISTER,
        {
            "id": worker_id,
            "hostname": socket.gethostname(),
            "pid": os.getpid(),
            "strategy": options.strategy,
            "queues": options.queues or [],
            "task_paths": declaration.paths(),
            "lease_seconds": conf.get("LEASE_SECONDS"),
        },
    )


def leave(connection: psycopg.Connection, worker_id: str) -> None:
    """Close the row: this worker ended in order."""
    connection.execute(LEAVE, {"id": worker_id})
