"""Let `prune_history` delete bulk runs that are over."""

from tasks.actions.prune import History

PRUNE_RUNS = """
WITH page AS MATERIALIZED (
    SELECT id, created_at FROM tasks_bulkrun WHERE id > %(after)s::bigint ORDER BY id LIMIT %(window)s::int
), doomed AS MATERIALIZED (
    SELECT run.id FROM page JOIN tasks_bulkrun AS run ON run.id = page.id
    WHERE run.finished_at < statement_timestamp() - %(age)s::interval FOR UPDATE OF run SKIP LOCKED
), deleted AS (
    DELETE FROM tasks_bulkrun USING doomed WHERE tasks_bulkrun.id = doomed.id RETURNING tasks_bulkrun.id
)
SELECT (SELECT max(id) FROM page) AS last_id, (SELECT count(*) FROM deleted) AS deleted,
    (SELECT min(created_at) FROM page) < statement_timestamp() - %(age)s::interval AS is_old
"""

HISTORY = History("bulk_runs", "tasks_bulkrun", PRUNE_RUNS)
