"""The line in which READY tasks stand, as a part of every claim's statement.

Why it looks as it does, with figures: `queue_name = ANY(…)` sorts the whole table (27 ms against 0.3 ms with 100,000
ready rows), so queues and priorities are walked by a loose scan, and so are the keys.
"""

# Which (queue, priority) pairs have READY rows without a key, the first of which is due when: a step of the index each.
PAIRS = """
WITH RECURSIVE every_queue (name) AS (
    (SELECT queue_name FROM tasks_task AS task
     WHERE task.status = 'READY' AND task.ordering_key IS NULL AND %(queues)s::text[] IS NULL
     ORDER BY task.queue_name LIMIT 1)
    UNION ALL
    SELECT (SELECT task.queue_name FROM tasks_task AS task
            WHERE task.status = 'READY' AND task.ordering_key IS NULL AND task.queue_name > every_queue.name
            ORDER BY task.queue_name LIMIT 1)
    FROM every_queue WHERE every_queue.name IS NOT NULL
), queue (name) AS (
    SELECT served.name
    FROM (SELECT unnest(%(queues)s::text[]) UNION SELECT name FROM every_queue WHERE name IS NOT NULL) AS served (name)
    WHERE NOT EXISTS (SELECT FROM tasks_queue WHERE tasks_queue.name = served.name AND tasks_queue.paused)
), pair AS (
    (SELECT queue.name AS queue_name, first.priority, first.run_after FROM queue, LATERAL (
        SELECT task.priority, task.run_after FROM tasks_task AS task
        WHERE task.status = 'READY' AND task.ordering_key IS NULL AND task.queue_name = queue.name
        ORDER BY task.priority DESC, task.run_after LIMIT 1) AS first)
    UNION ALL
    SELECT pair.queue_name, next.priority, next.run_after FROM pair, LATERAL (
        SELECT task.priority, task.run_after FROM tasks_task AS task
        WHERE task.status = 'READY' AND task.ordering_key IS NULL AND task.queue_name = pair.queue_name
          AND task.priority < pair.priority
        ORDER BY task.priority DESC, task.run_after LIMIT 1) AS next
)"""

# The earliest unfinished row of each key, from a cursor that wraps, some hundreds of keys a stride. A key is held by
# its PROCESSING row and by a row that waits for its retry alike. The holder need not be the earliest: an enqueuer may
# have committed a lower id late. Met in every claim, that head would fail all of them while its holder runs.
HEADS = """, head AS (
    (SELECT task.ordering_key, task.id, task.status, task.queue_name, task.priority, task.run_after, 1 AS number
     FROM tasks_task AS task
     WHERE task.ordering_key IS NOT NULL AND task.status IN ('READY', 'PROCESSING')
       AND task.ordering_key > %(cursor)s::text AND %(keys)s::int > 0
     ORDER BY task.ordering_key, task.id LIMIT 1)
    UNION ALL
    SELECT next.*, head.number + 1 FROM head, LATERAL (
        SELECT task.ordering_key, task.id, task.status, task.queue_name, task.priority, task.run_after
        FROM tasks_task AS task
        WHERE task.ordering_key IS NOT NULL AND task.status IN ('READY', 'PROCESSING')
          AND task.ordering_key > head.ordering_key
        ORDER BY task.ordering_key, task.id LIMIT 1) AS next
    WHERE head.number < %(keys)s::int
), keyed AS (
    SELECT head.id, head.queue_name, head.priority, head.run_after FROM head
    WHERE head.status = 'READY' AND head.run_after <= statement_timestamp()
      AND NOT EXISTS (SELECT FROM tasks_task AS holder
                      WHERE holder.ordering_key = head.ordering_key AND holder.status = 'PROCESSING')
      AND (%(queues)s::text[] IS NULL OR head.queue_name = ANY(%(queues)s::text[]))
      AND NOT EXISTS (SELECT FROM tasks_queue WHERE tasks_queue.name = head.queue_name AND tasks_queue.paused)
)"""

# The line of a queue and priority, cut where a head of a key stands in it: the rows without a key between `since` and
# `until`, then the head. So both kinds go by run_after and id, and neither can starve the other. Queues of one
# priority come in the order named; when none is named chance decides, so that no queue starves another.
STRETCHES = """, mark AS (
    SELECT queue_name, priority, run_after, id, id AS head_id FROM keyed
    UNION ALL
    SELECT queue_name, priority, statement_timestamp(), 9223372036854775807, NULL FROM pair
    WHERE run_after <= statement_timestamp()
), turn AS MATERIALIZED (
    SELECT line.queue_name, coalesce(array_position(%(queues)s::text[], line.queue_name), random()) AS number
    FROM (SELECT DISTINCT queue_name FROM mark) AS line
), stretch AS MATERIALIZED (
    SELECT mark.queue_name, mark.priority, mark.head_id, mark.run_after AS until, mark.id AS until_id,
        lag(mark.run_after, 1, '-infinity') OVER line AS since, lag(mark.id, 1, 0::bigint) OVER line AS since_id
    FROM mark JOIN turn ON turn.queue_name = mark.queue_name
    WINDOW line AS (PARTITION BY mark.queue_name, mark.priority ORDER BY mark.run_after, mark.id)
    ORDER BY mark.priority DESC, turn.number, mark.run_after, mark.id
)"""

LINE = PAIRS + HEADS + STRETCHES
