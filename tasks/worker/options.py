"""A worker's options, the connections that its processes need, and their rows."""

import logging
import os
import socket
from dataclasses import dataclass

import psycopg

from tasks import conf
from tasks.exceptions import TooFewConnections
from tasks.framework import declaration
from tasks.queue.strategies import DEFAULT_STRATEGY, STRATEGIES
from tasks.support.database import fetch

logger = logging.getLogger(__name__)

MOST_THREADS, MOST_COROUTINES = 256, 2000
MOST_ORM_THREADS = 8  # of one process: they run the synchronous parts of its coroutines, each on its own connection
LEAST_SESSIONS = 2  # the supervisor's, and that of one process whose handlers do not use the database

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
UPDATE tasks_worker SET stopped_at = clock_timestamp(), stop_reason = 'stopped',
    current_task_id = NULL, running_ids = '{}'
WHERE id = %(id)s AND stopped_at IS NULL
"""


@dataclass(frozen=True)
class Options:
    """`queues` None: every queue; `batch_size` and `max_tasks` None: no limit but the strategy's own.

    `threads` and `coroutines`: how many synchronous and `async def` handlers each of the processes runs at once.
    """

    queues: list[str] | None = None
    strategy: str = DEFAULT_STRATEGY
    concurrency: int = 1
    threads: int = 1
    coroutines: int = 1
    batch_size: int | None = None
    burst: bool = False
    max_tasks: int | None = None

    @property
    def largest_batch(self) -> int:
        most = STRATEGIES[self.strategy].max_batch
        return min(self.batch_size or most, most)

    @property
    def runs_many(self) -> bool:
        """True if one process runs several tasks at once."""
        return self.threads > 1 or self.coroutines > 1

    @property
    def slots(self) -> int:
        """The most tasks that one process runs at once: its threads come first, then its coroutines."""
        return self.threads + self.coroutines if self.runs_many else 1

    @property
    def orm_threads(self) -> int:
        """The threads of one process that run the synchronous parts of coroutines."""
        return min(self.coroutines, MOST_ORM_THREADS) if self.runs_many else 0


def check(connection: psycopg.Connection, options: Options) -> None:
    """Log one line when the sessions of this worker may not fit. Raises TooFewConnections when it can never run.

    `connection` is not counted: it ends before the worker opens its own.
    """
    needed = most_sessions(options)
    tightest = min(fetch(connection, LIMITS, {}), key=lambda row: row["allowed"] - row["used"])
    limit = "{name} allows {allowed}, of which {used} are in use".format(**tightest)
    if tightest["allowed"] < LEAST_SESSIONS:
        raise TooFewConnections(f"A worker needs {LEAST_SESSIONS} connections at least, and {limit}.")
    free = max(0, tightest["allowed"] - tightest["used"])
    if free < needed:
        logger.warning(
            "this worker opens up to %s connections, and %s are free: %s; raise it, or start fewer of them",
            needed, free, limit,
        )  # fmt: skip


def most_sessions(options: Options) -> int:
    """The most sessions that this supervisor and its processes open, beside those of named locks.

    A process has its own, a second one to write with while there is much to do, and one for each thread of its
    handlers, unless a pooling proxy lends them.
    """
    writes_apart = STRATEGIES[options.strategy].joins_flush and not options.runs_many
    through_proxy = bool(conf.get("DIRECT_DATABASE_URL"))
    of_handlers = 0 if through_proxy else options.threads + options.orm_threads
    return 1 + options.concurrency * (1 + writes_apart + of_handlers)


def register(connection: psycopg.Connection, worker_id: str, options: Options) -> None:
    """Insert the worker's row; a worker that claims without one is taken for dead."""
    params = {
        "id": worker_id,
        "hostname": socket.gethostname(),
        "pid": os.getpid(),
        "strategy": options.strategy,
        "queues": options.queues or [],
        "task_paths": declaration.paths(),
        "lease_seconds": conf.get("LEASE_SECONDS"),
    }
    connection.execute(REGISTER, params)


def leave(connection: psycopg.Connection, worker_id: str) -> None:
    """Close the row: this worker ended in order."""
    connection.execute(LEAVE, {"id": worker_id})
