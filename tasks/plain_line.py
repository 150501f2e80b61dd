"""The line as it is nearly always: every READY task is of one queue and priority, and none has an ordering key.

Then the first rows of the index are what a claim takes, and neither queues nor keys need to be walked. That takes a
quarter off the time of a claim of one task, for which an idle worker was woken. One statement finds out whether the
line is plain and claims if so; where it is not, it rests for a while, and `tasks.line` is asked at once.
"""

REST_SECONDS = 1.0  # so that other lines are asked in vain no more often

# `plain`: one row when the line is, of nulls when it is empty as well. `locked`: as in `tasks.claims.LOCKED`.
PLAIN = """
WITH plain AS MATERIALIZED (
    SELECT first.queue_name, first.priority
    FROM (SELECT) AS one
    LEFT JOIN (
        SELECT queue_name, priority FROM tasks_task WHERE status = 'READY' AND ordering_key IS NULL
        ORDER BY queue_name, priority DESC, run_after, id LIMIT 1) AS first ON true
    LEFT JOIN LATERAL (
        SELECT queue_name, priority FROM tasks_task
        WHERE status = 'READY' AND ordering_key IS NULL AND first.queue_name IS NOT NULL
        ORDER BY queue_name DESC, priority, run_after DESC, id DESC LIMIT 1) AS last ON true
    WHERE first.queue_name IS NOT DISTINCT FROM last.queue_name AND first.priority IS NOT DISTINCT FROM last.priority
      AND NOT EXISTS (
          SELECT FROM tasks_task WHERE ordering_key IS NOT NULL AND status IN ('READY', 'PROCESSING'))
), locked AS MATERIALIZED (
    SELECT due.* FROM plain CROSS JOIN LATERAL (
        SELECT task.id, task.task_path, task.attempt, task.max_attempts FROM tasks_task AS task
        WHERE task.status = 'READY' AND task.ordering_key IS NULL
          AND task.queue_name = plain.queue_name AND task.priority = plain.priority
          AND task.run_after <= statement_timestamp()
        ORDER BY task.run_after, task.id LIMIT (SELECT %(limit)s::int) FOR NO KEY UPDATE SKIP LOCKED) AS due
    WHERE (%(queues)s::text[] IS NULL OR plain.queue_name = ANY(%(queues)s::text[]))
      AND NOT EXISTS (SELECT FROM tasks_queue WHERE tasks_queue.name = plain.queue_name AND tasks_queue.paused)
)"""
