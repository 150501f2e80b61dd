"""Whether the server has room for the sessions of a worker, told before it starts: a missing one is slow to find."""

import logging
from dataclasses import dataclass

import psycopg

from tasks import conf
from tasks.claims import STRATEGIES
from tasks.database import fetch
from tasks.exceptions import TooFewConnections
from tasks.worker.options import Options

logger = logging.getLogger(__name__)
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


@dataclass(frozen=True)
class Limit:
    """A limit by its name, how many sessions it allows us, and how many of them others use."""

    name: str
    allowed: int
    used: int

    @property
    def free(self) -> int:
        return max(0, self.allowed - self.used)


def check(connection: psycopg.Connection, options: Options) -> None:
    """Log one line when the sessions of this worker may not fit. Raises TooFewConnections when it can never run.

    `connection` is not counted: it ends before the worker opens its own.
    """
    needed = most_sessions(options)
    tightest = min((Limit(**row) for row in fetch(connection, LIMITS, {})), key=lambda limit: limit.free)
    if tightest.allowed < LEAST:
        raise TooFewConnections(f"A worker needs {LEAST} connections at least, and {told(tightest)}.")
    if tightest.free < needed:
        logger.warning(
            "this worker opens up to %s connections, and %s are free: %s; raise it, or start fewer processes",
            needed, tightest.free, told(tightest),
        )  # fmt: skip


def most_sessions(options: Options) -> int:
    """How many sessions this supervisor and its processes open at the most, but for those of named locks.

    A process has its own, a second one to write with while there is much to do, and that of its handlers, unless a
    pooling proxy lends it one.
    """
    writes_apart = STRATEGIES[options.strategy].joins_flush
    through_proxy = bool(conf.get("DIRECT_DATABASE_URL"))
    return FOR_SUPERVISOR + options.concurrency * (1 + writes_apart + (not through_proxy))


def told(limit: Limit) -> str:
    """The limit in words."""
    return f"{limit.name} allows {limit.allowed}, of which {limit.used} are in use"
