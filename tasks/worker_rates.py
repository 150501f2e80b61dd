"""Each worker's tasks per minute, from the rollup that its flushes write anyway.

The rollup's shard is a hash of the worker's id, with 32,768 values. With 200 workers, two share a shard in about every
second installation; then the number is their sum and is marked so.
"""

from dataclasses import dataclass

from django.db import connection as default_connection

from tasks.database import Connection, fetch

# The current minute counts only the part that has passed.
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
    """Tasks ended per minute, over the last five to six minutes; `is_shared`: the sum of two workers or more."""

    per_minute: float
    is_shared: bool


def rates(lived_seconds: dict[str, float], connection: Connection | None = None) -> dict[str, Rate]:
    """The rate of each worker by id; a worker younger than the window is measured over its own life."""
    rows = fetch(connection or default_connection, RATES, {"ids": list(lived_seconds)})
    return {
        row["id"]: Rate(60 * row["ended"] / max(1.0, min(row["seconds"], lived_seconds[row["id"]])), row["is_shared"])
        for row in rows
    }
