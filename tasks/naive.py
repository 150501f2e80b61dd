"""Optimistic completion without a claim: kept for the lab, to show what it loses. No worker uses it.

Read a READY row with its version, do the work, then complete the row if its version is still that one. Nobody is kept
from reading the same row meanwhile, so the work is done twice and one result is lost; and any write to the row in
between loses the result too. Source: the naive variant of the article on a table of tasks (reference D).
"""

from tasks.database import Connection, fetch

READ = """
SELECT id, version FROM tasks_task
WHERE status = 'READY' AND ordering_key IS NULL AND queue_name = %(queue)s::text AND run_after <= statement_timestamp()
ORDER BY priority DESC, run_after, id LIMIT 1
"""

COMPLETE = """
UPDATE tasks_task SET status = 'COMPLETED', version = version + 1, attempt = attempt + 1,
    return_value = %(return_value)s::jsonb, finished_at = statement_timestamp()
WHERE id = %(id)s::bigint AND version = %(version)s::int
RETURNING id
"""


def read_next(connection: Connection, queue: str) -> tuple[int, int] | None:
    """The next due task of the queue as (id, version), held by nobody; None when there is none."""
    rows = fetch(connection, READ, {"queue": queue})
    return (rows[0]["id"], rows[0]["version"]) if rows else None


def complete_if_unchanged(connection: Connection, task_id: int, version: int, return_value: str | None = None) -> bool:
    """Complete the task if nobody has touched it since it was read; False when the work was done for nothing."""
    params = {"id": task_id, "version": version, "return_value": return_value}
    return bool(fetch(connection, COMPLETE, params))
