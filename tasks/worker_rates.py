"""How many tasks a minute each worker ends, from the rollup that its flushes write anyway: no column of its own.

The rollup's shard is a hash of the worker's id, of 32,768 values: among 200 workers two share one in about every second
installation. Then the number is that of both together, and says so.
"""

from dataclasses import dataclass

from django.db import connection as default_connection

from tasks.database import Connection, fetch

# The minute that runs counts by the part of it that is over.
RATES = """
WITH recent AS MATERIALIZED (
    SELECT shard, sum(completed + failed) AS ended FROM tasks_throughput
    WHERE minute >= date_trunc('minute', statement_timestamp()) - interval '5 minutes' GROUP BY shard
), worker AS (
    SELECT id, hashtext(id) & 32767 AS shard FROM unnest(%(ids)s::text[]) AS asked (id)
)
SELECT worker.id, coalesce(recent.ended, 0)::float8 AS ended,
    extract(epoch FROM statement_timestamp() - date_trunc('minute', statement_timestamp()))::float8 + 300 AS seconds,
    count(*) OVER (PARTITION BY worker.shard) > 1 AS is_shared
FROM worker LEFT JOIN recent ON recent.shard = worker.shard
"""


@dataclass(frozen=True)
class Rate:
    """Tasks ended a minute, over the last five to six; `is_shared`: together with another of these workers."""

    per_minute: float
    is_shared: bool


def rates(lived_seconds: dict[str, float], connection: Connection | None = None) -> dict[str, Rate]:
    """The rate of each worker by id; a worker younger than the window is measured by its own life."""
    rows = fetch(connection or default_connection, RATES, {"ids": list(lived_seconds)})
    return {
        row["id"]: Rate(60 * row["ended"] / max(1.0, min(row["seconds"], lived_seconds[row["id"]])), row["is_shared"])
        for row in rows
    }
