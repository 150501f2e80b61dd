"""The rollup of finished attempts: adds minutes up into totals that only grow, so that minutes can be pruned.

Pages read the minutes of `tasks_throughput`, and for a long chart their half hours (slots.py). Metrics need counters.
To sum every stored minute at each scrape would be slow, and a pruning would look like a restart.
"""

from dataclasses import dataclass, field

from django.db import connection as default_connection

from tasks.database import Connection, fetch, transaction
from tasks.rollup import slots

# A minute is closed when no flush can add to it. A flush does that in the last statement of a short transaction.
SETTLE_MINUTES = 5
# Rows folded at a time, in some 100 ms: months of minutes without totals must not hit a time limit.
MOST_ROWS = 5000

ELECT = "SELECT pg_try_advisory_xact_lock(hashtext('rowlock:rollup'), hashtext(current_schema())) AS elected"

FOLDED = "SELECT coalesce(max(folded_until), '-infinity')::text AS until FROM tasks_throughputtotal"

# The last closed minute, or an earlier one when there are very many.
UPTO = """
SELECT least(closed, later)::text AS upto, coalesce(later < closed, false) AS is_part
FROM (SELECT statement_timestamp() - make_interval(mins => %(settle_minutes)s::int) AS closed,
    (SELECT minute FROM tasks_throughput WHERE minute > %(folded_until)s::timestamptz
     ORDER BY minute OFFSET %(rows)s::int LIMIT 1) AS later) AS bounds
"""

# The bound is there twice: read beforehand, so that the planner expects few rows and uses the index; and read in this
# statement's snapshot, so that nothing is counted twice.
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


@dataclass(frozen=True)
class Total:
    """All attempts that ever finished in one queue. Buckets count completed ones; tasks/latency.py has their bounds."""

    queue_name: str
    completed: int
    failed: int
    run_seconds: float
    wait_seconds: float
    run_buckets: list[int] = field(default_factory=list)
    wait_buckets: list[int] = field(default_factory=list)


def fold(connection: Connection | None = None) -> bool:
    """Add closed minutes to the totals and the next closed half hour to the slots; True if there is more to add.

    Does nothing while another session folds.
    """
    connection = connection or default_connection
    with transaction(connection):
        if not fetch(connection, ELECT)[0]["elected"]:
            return False
        params = {"folded_until": _folded_until(connection), "settle_minutes": SETTLE_MINUTES, "rows": MOST_ROWS}
        bound = fetch(connection, UPTO, params)[0]
        with connection.cursor() as cursor:
            cursor.execute(FOLD, {"folded_until": str(params["folded_until"]), "upto": bound["upto"]})
        return slots.add_up_next(connection, SETTLE_MINUTES) or bool(bound["is_part"])


def totals(connection: Connection | None = None) -> list[Total]:
    """The current totals of every queue; they never decrease. Two statements."""
    connection = connection or default_connection
    rows = fetch(connection, TOTALS, {"folded_until": _folded_until(connection)})
    return [Total(**{**row, **{name: row[name] or [] for name in ("run_buckets", "wait_buckets")}}) for row in rows]


def _folded_until(connection: Connection) -> str:
    """As text, because Python's dates have no infinity, which stands for never."""
    until: str = fetch(connection, FOLDED)[0]["until"]
    return until
