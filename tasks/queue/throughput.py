"""Throughput and latency of each queue: sums of each minute, then of each half hour for charts, and totals.

Times are kept as histograms, so percentiles need no single times. A histogram is an array of counts, and its last
bucket has no upper bound. A flush adds to the row of its minute, queue and shard. Later one session at a time folds
closed minutes into slots of half an hour and into totals.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db import connection as default_connection

from tasks.support.database import Connection, execute, fetch, transaction

BOUNDS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
BUCKETS = len(BOUNDS_SECONDS) + 1
SLOT = timedelta(minutes=30)
KEPT = timedelta(days=8)  # no chart goes further back, so older slots are neither made nor kept
# A minute is closed when no flush can add to it. A flush does that in the last statement of a short transaction.
CLOSED_AFTER_MINUTES = 5
# Rows folded at a time, in some 100 ms: months of minutes without totals must not hit a time limit.
MOST_ROWS = 5000

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

ELECT = "SELECT pg_try_advisory_xact_lock(hashtext('rowlock:rollup'), hashtext(current_schema())) AS elected"

# As text, because Python's dates have no infinity, which stands for never.
FOLDED = "SELECT coalesce(max(folded_until), '-infinity')::text AS until FROM tasks_throughputtotal"

# The last closed minute, or an earlier one when there are very many.
UPTO = """
SELECT least(closed, later)::text AS upto, coalesce(later < closed, false) AS is_part
FROM (SELECT statement_timestamp() - make_interval(mins => %(closed_after_minutes)s::int) AS closed,
    (SELECT minute FROM tasks_throughput WHERE minute > %(folded_until)s::timestamptz
     ORDER BY minute OFFSET %(rows)s::int LIMIT 1) AS later) AS bounds
"""

# The bound is there twice. Read beforehand, it makes the planner expect few rows and use the index. Read in this
# statement's snapshot, it lets nothing be counted twice.
FOLD = """
WITH minutes AS MATERIALIZED (
    SELECT * FROM tasks_throughput
    WHERE minute > %(folded_until)s::timestamptz
      AND minute > coalesce((SELECT max(folded_until) FROM tasks_throughputtotal), '-infinity')
      AND minute <= %(upto)s::timestamptz
), buckets AS (
    SELECT queue_name, array_agg(run ORDER BY place) AS run, array_agg(wait ORDER BY place) AS wait
    FROM (SELECT queue_name, place, sum(coalesce(run, 0))::bigint AS run, sum(coalesce(wait, 0))::bigint AS wait
          FROM minutes, unnest(run_buckets, wait_buckets) WITH ORDINALITY AS pair (run, wait, place)
          GROUP BY queue_name, place) AS counted
    GROUP BY queue_name
)
INSERT INTO tasks_throughputtotal AS total
    (queue_name, folded_until, completed, failed, run_ms, wait_ms, run_buckets, wait_buckets)
SELECT queue_name, max(minute), sum(completed), sum(failed), sum(run_ms), sum(wait_ms),
    coalesce((SELECT run FROM buckets WHERE buckets.queue_name = minutes.queue_name), '{}'),
    coalesce((SELECT wait FROM buckets WHERE buckets.queue_name = minutes.queue_name), '{}')
FROM minutes GROUP BY queue_name
ON CONFLICT (queue_name) DO UPDATE SET
    folded_until = excluded.folded_until,
    completed = total.completed + excluded.completed, failed = total.failed + excluded.failed,
    run_ms = total.run_ms + excluded.run_ms, wait_ms = total.wait_ms + excluded.wait_ms,
    run_buckets = ARRAY(SELECT coalesce(old, 0) + coalesce(new, 0)
        FROM unnest(total.run_buckets, excluded.run_buckets) WITH ORDINALITY AS pair (old, new, place) ORDER BY place),
    wait_buckets = ARRAY(SELECT coalesce(old, 0) + coalesce(new, 0)
        FROM unnest(total.wait_buckets, excluded.wait_buckets) WITH ORDINALITY AS pair (old, new, place) ORDER BY place)
"""

# The next closed half hour with any minute. One array element at a time: to unnest 32 counts of each row took eight
# times as long.
FILL_NEXT_SLOT = """
WITH forgotten AS (
    DELETE FROM tasks_throughputslot WHERE at < statement_timestamp() - %(kept)s::interval
), next AS (
    SELECT date_bin(%(slot)s::interval, minute, 'epoch') AS at FROM tasks_throughput
    WHERE minute >= greatest((SELECT max(at) + %(slot)s::interval FROM tasks_throughputslot),
        statement_timestamp() - %(kept)s::interval)
    ORDER BY minute LIMIT 1
)
INSERT INTO tasks_throughputslot (at, queue_name, completed, failed, run_buckets, wait_buckets)
SELECT next.at, queue_name,
    sum(completed)::bigint AS completed, sum(failed)::bigint AS failed,
    ARRAY[sum(run_buckets[1]), sum(run_buckets[2]), sum(run_buckets[3]), sum(run_buckets[4]), sum(run_buckets[5]),
        sum(run_buckets[6]), sum(run_buckets[7]), sum(run_buckets[8]), sum(run_buckets[9]), sum(run_buckets[10]),
        sum(run_buckets[11]), sum(run_buckets[12]), sum(run_buckets[13]), sum(run_buckets[14]),
        sum(run_buckets[15]), sum(run_buckets[16])]::bigint[] AS run_buckets,
    ARRAY[sum(wait_buckets[1]), sum(wait_buckets[2]), sum(wait_buckets[3]), sum(wait_buckets[4]),
        sum(wait_buckets[5]), sum(wait_buckets[6]), sum(wait_buckets[7]), sum(wait_buckets[8]),
        sum(wait_buckets[9]), sum(wait_buckets[10]), sum(wait_buckets[11]), sum(wait_buckets[12]),
        sum(wait_buckets[13]), sum(wait_buckets[14]), sum(wait_buckets[15]), sum(wait_buckets[16])]::bigint[]
        AS wait_buckets
FROM next JOIN tasks_throughput ON minute >= next.at AND minute < next.at + %(slot)s::interval
WHERE next.at + %(slot)s::interval <= statement_timestamp() - make_interval(mins => %(closed_after_minutes)s::int)
GROUP BY next.at, queue_name
"""

# One statement, so that a minute that is folded meanwhile is counted once.
TOTALS = """
WITH part AS MATERIALIZED (
    SELECT queue_name, completed, failed, run_ms, wait_ms, run_buckets, wait_buckets FROM tasks_throughputtotal
    UNION ALL
    SELECT queue_name, completed, failed, run_ms, wait_ms, run_buckets::bigint[], wait_buckets::bigint[]
    FROM tasks_throughput
    WHERE minute > %(folded_until)s::timestamptz
      AND minute > coalesce((SELECT max(folded_until) FROM tasks_throughputtotal), '-infinity')
)
SELECT plain.*, buckets.run_buckets, buckets.wait_buckets
FROM (SELECT queue_name, sum(completed)::bigint AS completed, sum(failed)::bigint AS failed,
             sum(run_ms)::float8 / 1000 AS run_seconds, sum(wait_ms)::float8 / 1000 AS wait_seconds
      FROM part GROUP BY queue_name) AS plain
LEFT JOIN (SELECT queue_name, array_agg(run ORDER BY place) AS run_buckets,
             array_agg(wait ORDER BY place) AS wait_buckets
      FROM (SELECT queue_name, place, sum(coalesce(run, 0))::bigint AS run, sum(coalesce(wait, 0))::bigint AS wait
            FROM part, unnest(run_buckets, wait_buckets) WITH ORDINALITY AS pair (run, wait, place)
            GROUP BY queue_name, place) AS counted
      GROUP BY queue_name) AS buckets USING (queue_name)
ORDER BY plain.queue_name
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


@dataclass(frozen=True)
class Total:
    """All attempts that ever finished in one queue. Buckets count completed ones."""

    queue_name: str
    completed: int
    failed: int
    run_seconds: float
    wait_seconds: float
    run_buckets: list[int] = field(default_factory=list)
    wait_buckets: list[int] = field(default_factory=list)


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
        "run_buckets": [as_array(queue.run_buckets) for queue in sums],
        "wait_buckets": [as_array(queue.wait_buckets) for queue in sums],
    }
    execute(connection, ADD_UP, params)


def fold(connection: Connection | None = None) -> bool:
    """Add closed minutes to the totals, and the next closed half hour to the slots.

    Returns True if there is more to add. Does nothing while another session folds.
    """
    connection = connection or default_connection
    params: dict[str, Any] = {
        "closed_after_minutes": CLOSED_AFTER_MINUTES, "rows": MOST_ROWS, "slot": SLOT, "kept": KEPT
    }  # fmt: skip
    with transaction(connection):
        if not fetch(connection, ELECT)[0]["elected"]:
            return False
        params["folded_until"] = fetch(connection, FOLDED)[0]["until"]
        bound = fetch(connection, UPTO, params)[0]
        execute(connection, FOLD, {**params, "upto": bound["upto"]})
        return bool(execute(connection, FILL_NEXT_SLOT, params) or bound["is_part"])


def totals(connection: Connection | None = None) -> list[Total]:
    """The current totals of every queue; they never decrease. Two statements."""
    connection = connection or default_connection
    rows = fetch(connection, TOTALS, {"folded_until": fetch(connection, FOLDED)[0]["until"]})
    return [Total(**{**row, **{name: row[name] or [] for name in ("run_buckets", "wait_buckets")}}) for row in rows]


def as_array(counts: Counter[int]) -> str:
    """The counts as a PostgreSQL array, one for each bucket; buckets are numbered as by `width_bucket`.

    >>> as_array(Counter([0, 2, 2]))
    '{1,0,2,0,0,0,0,0,0,0,0,0,0,0,0,0}'
    """
    return f"{{{','.join(str(counts[number]) for number in range(BUCKETS))}}}"


def percentile(counts: Sequence[int], share: float) -> float | None:
    """The time in seconds below which this share lies, interpolated within its bucket; None without counts.

    Times beyond the last bound are reported as that bound.

    >>> percentile([0] * 16, 0.95) is None, percentile([10] + [0] * 15, 0.5), percentile([0] * 15 + [3], 0.5)
    (True, 0.0025, 1800.0)
    """
    wanted = share * sum(counts)
    if not wanted:
        return None
    below, low = 0, 0.0
    for count, high in zip(counts, BOUNDS_SECONDS, strict=False):
        if count and below + count >= wanted:
            return low + (wanted - below) / count * (high - low)
        below, low = below + count, high
    return BOUNDS_SECONDS[-1]
