"""Add the rollup's minutes up into half hours: a chart of a week reads hundreds of rows, not 200,000.

A half hour is added up once, when no flush can add to it, so its rows never change. A reader takes half hours up to the
end of the last one, and minutes after it.
"""

from datetime import timedelta

from tasks.database import Connection

SLOT = timedelta(minutes=30)
# No chart goes further back, so older ones are neither made nor kept.
KEPT = timedelta(days=8)

# For minutes or half hours. One array element at a time: to unnest 32 counts of each row took eight times as long.
SUMS = """
    sum(completed)::bigint AS completed, sum(failed)::bigint AS failed,
    ARRAY[sum(run_buckets[1]), sum(run_buckets[2]), sum(run_buckets[3]), sum(run_buckets[4]), sum(run_buckets[5]),
        sum(run_buckets[6]), sum(run_buckets[7]), sum(run_buckets[8]), sum(run_buckets[9]), sum(run_buckets[10]),
        sum(run_buckets[11]), sum(run_buckets[12]), sum(run_buckets[13]), sum(run_buckets[14]),
        sum(run_buckets[15]), sum(run_buckets[16])]::bigint[] AS run_buckets,
    ARRAY[sum(wait_buckets[1]), sum(wait_buckets[2]), sum(wait_buckets[3]), sum(wait_buckets[4]),
        sum(wait_buckets[5]), sum(wait_buckets[6]), sum(wait_buckets[7]), sum(wait_buckets[8]),
        sum(wait_buckets[9]), sum(wait_buckets[10]), sum(wait_buckets[11]), sum(wait_buckets[12]),
        sum(wait_buckets[13]), sum(wait_buckets[14]), sum(wait_buckets[15]), sum(wait_buckets[16])]::bigint[]
        AS wait_buckets"""

# The next closed half hour with any minute.
NEXT = """
WITH forgotten AS (
    DELETE FROM tasks_throughputslot WHERE at < statement_timestamp() - %(kept)s::interval
), next AS (
    SELECT date_bin(%(slot)s::interval, minute, 'epoch') AS at FROM tasks_throughput
    WHERE minute >= greatest((SELECT max(at) + %(slot)s::interval FROM tasks_throughputslot),
        statement_timestamp() - %(kept)s::interval)
    ORDER BY minute LIMIT 1
)
INSERT INTO tasks_throughputslot (at, queue_name, completed, failed, run_buckets, wait_buckets)
SELECT next.at, queue_name,"""

OF_ITS_MINUTES = """
FROM next JOIN tasks_throughput ON minute >= next.at AND minute < next.at + %(slot)s::interval
WHERE next.at + %(slot)s::interval <= statement_timestamp() - make_interval(mins => %(settle_minutes)s::int)
GROUP BY next.at, queue_name
"""

ADD_UP_NEXT = NEXT + SUMS + OF_ITS_MINUTES


def add_up_next(connection: Connection, settle_minutes: int) -> bool:
    """Add up the next closed half hour; False if there is none. Only one session at a time may call it."""
    params = {"slot": SLOT, "kept": KEPT, "settle_minutes": settle_minutes}
    with connection.cursor() as cursor:
        cursor.execute(ADD_UP_NEXT, params)
        return bool(cursor.rowcount)
