"""The sizes of our tables: a sample an hour, and what has grown since yesterday."""

from typing import Any

from django.db import connection as default_connection

from dashboard.locks.limits import limited
from tasks.support.database import Connection, fetch

# A table that somebody locks is left out, or its size would wait for the lock; so are the archive's months, which are
# to grow. One sample an hour, by whichever process is elected to sample; an older one is dropped with it, so the table
# stays small without `prune_history`.
SAMPLE = """
WITH old AS (
    DELETE FROM dashboard_tablesize WHERE at < statement_timestamp() - interval '8 days'
)
INSERT INTO dashboard_tablesize (name, bytes)
SELECT relname, pg_total_relation_size(oid) FROM pg_class
WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'
  AND NOT relispartition AND (starts_with(relname, 'tasks_') OR starts_with(relname, 'dashboard_'))
  AND NOT EXISTS (SELECT FROM dashboard_tablesize WHERE at > statement_timestamp() - interval '1 hour')
  AND NOT EXISTS (
    SELECT FROM pg_locks AS lock WHERE lock.mode = 'AccessExclusiveLock'
      AND lock.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND (lock.relation = pg_class.oid
        OR lock.relation IN (SELECT indexrelid FROM pg_index WHERE indrelid = pg_class.oid)))
"""

# The first and the last sample of each table in a day. What PostgreSQL reuses after pruning does not make a file grow.
GROWN = """
WITH day AS MATERIALIZED (
    SELECT name, at, bytes FROM dashboard_tablesize WHERE at > statement_timestamp() - interval '25 hours'
), ends AS (
    SELECT name, min(at) AS since, max(at) AS until FROM day GROUP BY name
)
SELECT ends.name, ends.since, extract(epoch FROM ends.until - ends.since)::float8 AS seconds,
    was.bytes AS was, now.bytes AS now
FROM ends JOIN day AS was ON was.name = ends.name AND was.at = ends.since
JOIN day AS now ON now.name = ends.name AND now.at = ends.until
WHERE now.bytes > was.bytes ORDER BY now.bytes - was.bytes DESC, ends.name LIMIT 20
"""


def sample(connection: Connection) -> int:
    """Keep the sizes of our tables unless the last hour has some; returns how many. Raises psycopg.Error."""
    with limited(connection), connection.cursor() as cursor:
        cursor.execute(SAMPLE)
        return cursor.rowcount


def grown() -> list[dict[str, Any]]:
    """The tables that have grown within a day, the most grown first: `name, since, seconds, was, now`, in bytes."""
    return fetch(default_connection, GROWN)
