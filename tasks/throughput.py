"""The sums per minute and queue that a flush adds to `tasks_throughput`."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tasks import latency
from tasks.database import Connection

# Last in the flush, ordered by queue: workers that share a shard must not deadlock.
ADD_UP = """
INSERT INTO tasks_throughput AS sum
    (minute, queue_name, shard, completed, failed, run_ms, wait_ms, run_buckets, wait_buckets)
SELECT date_trunc('minute', statement_timestamp()), queue_name, hashtext(%(worker_id)s::text) & 32767,
    completed, failed, run_ms, wait_ms, run_buckets::int[], wait_buckets::int[]
FROM unnest(%(queue_names)s::text[], %(completed)s::int[], %(failed)s::int[], %(run_ms)s::float8[],
            %(wait_ms)s::float8[], %(run_buckets)s::text[], %(wait_buckets)s::text[])
    AS ended (queue_name, completed, failed, run_ms, wait_ms, run_buckets, wait_buckets)
ORDER BY queue_name
ON CONFLICT (minute, queue_name, shard) DO UPDATE SET
    completed = sum.completed + excluded.completed, failed = sum.failed + excluded.failed,
    run_ms = sum.run_ms + excluded.run_ms, wait_ms = sum.wait_ms + excluded.wait_ms,
    run_buckets = ARRAY(SELECT coalesce(old, 0) + coalesce(new, 0)
        FROM unnest(sum.run_buckets, excluded.run_buckets) WITH ORDINALITY AS pair (old, new, place) ORDER BY place),
    wait_buckets = ARRAY(SELECT coalesce(old, 0) + coalesce(new, 0)
        FROM unnest(sum.wait_buckets, excluded.wait_buckets) WITH ORDINALITY AS pair (old, new, place) ORDER BY place)
"""


@dataclass
class Sums:
    """The amounts that one flush adds to one queue's rollup: the columns of `tasks_throughput`."""

    completed: int = 0
    failed: int = 0
    run_ms: float = 0.0
    wait_ms: float = 0.0
    run_buckets: Counter[int] = field(default_factory=Counter)
    wait_buckets: Counter[int] = field(default_factory=Counter)

    def merge(self, other: "Sums") -> None:
        """Add another flush's sums."""
        self.completed += other.completed
        self.failed += other.failed
        self.run_ms += other.run_ms
        self.wait_ms += other.wait_ms
        self.run_buckets.update(other.run_buckets)
        self.wait_buckets.update(other.wait_buckets)

    def add(self, row: dict[str, Any]) -> None:
        """Add the completions of one row of COMPLETE."""
        self.completed += len(row["ids"])
        self.run_ms += row["run_ms"]
        self.wait_ms += row["wait_ms"]
        self.run_buckets.update(row["run_buckets"])
        self.wait_buckets.update(row["wait_buckets"])


SumsByQueue = dict[str, Sums]


def add_up(connection: Connection, worker_id: str, sums_by_queue: SumsByQueue) -> None:
    """Add these sums to the rollup of this minute, in the caller's transaction."""
    sums = sums_by_queue.values()
    params = {
        "worker_id": worker_id,
        "queue_names": list(sums_by_queue),
        "completed": [queue.completed for queue in sums],
        "failed": [queue.failed for queue in sums],
        "run_ms": [queue.run_ms for queue in sums],
        "wait_ms": [queue.wait_ms for queue in sums],
        "run_buckets": [latency.as_array(queue.run_buckets) for queue in sums],
        "wait_buckets": [latency.as_array(queue.wait_buckets) for queue in sums],
    }
    with connection.cursor() as cursor:
        cursor.execute(ADD_UP, params)
