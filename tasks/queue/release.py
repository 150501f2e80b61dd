"""Give claimed tasks back: what never started with its attempt, what was interrupted with a larger allowance.

A release names id, claimed_by and the time of the claim.
"""

from collections.abc import Iterable
from datetime import datetime

from tasks.support.database import Connection, fetch

# The attempt is given back, because these rows were claimed ahead and never started. `claimed_by` and `started_at`
# identify the claim. The attempt does not: after a release and another claim by the same worker it has the same number.
# A late release (the supervisor's, after an outage) would then take the task away while it runs. The version does not
# either: a harmless edit meanwhile must not strand the row. A row with an unknown function is parked, longer the older
# it is, so that it is not claimed again at once.
RELEASE = """
UPDATE tasks_task AS task SET
    status = CASE WHEN task.cancel_requested_at IS NULL THEN 'READY' ELSE 'CANCELLED' END,
    version = task.version + 1, claimed_by = NULL, attempt = task.attempt - 1,
    finished_at = CASE WHEN task.cancel_requested_at IS NULL THEN NULL ELSE statement_timestamp() END,
    started_at = NULL,
    run_after = CASE WHEN %(park)s::boolean
        THEN statement_timestamp() + least(interval '5 minutes', greatest(interval '5 seconds',
            (statement_timestamp() - task.created_at) / 2))
        ELSE task.run_after END
FROM unnest(%(ids)s::bigint[], %(claimed_at)s::timestamptz[]) AS unstarted (id, claimed_at)
WHERE task.id = unstarted.id AND task.started_at = unstarted.claimed_at AND task.claimed_by = %(worker_id)s::text
RETURNING task.id
"""

# A claim can commit while its answer is lost. Then rows have this worker's id, but the worker does not know them.
RELEASE_UNKNOWN = """
UPDATE tasks_task AS task SET
    status = CASE WHEN task.cancel_requested_at IS NULL THEN 'READY' ELSE 'CANCELLED' END,
    version = task.version + 1, claimed_by = NULL, attempt = task.attempt - 1, started_at = NULL,
    finished_at = CASE WHEN task.cancel_requested_at IS NULL THEN NULL ELSE statement_timestamp() END
WHERE task.status = 'PROCESSING' AND task.claimed_by = %(worker_id)s::text AND task.id <> ALL(%(held)s::bigint[])
RETURNING task.id
"""

# Interrupted while it ran, by a stop or a cancel: the attempt keeps its number, and one more is allowed.
INTERRUPT = """
WITH ended AS (
    UPDATE tasks_task AS task SET
        status = CASE WHEN %(cancel)s::boolean OR task.cancel_requested_at IS NOT NULL
                      THEN 'CANCELLED' ELSE 'READY' END,
        version = task.version + 1, claimed_by = NULL, max_attempts = least(task.max_attempts + 1, 32767),
        finished_at = CASE WHEN %(cancel)s::boolean OR task.cancel_requested_at IS NOT NULL
                           THEN statement_timestamp() END
    WHERE task.id = %(id)s::bigint AND task.attempt = %(attempt)s::int AND task.claimed_by = %(worker_id)s::text
    RETURNING task.id, task.attempt, task.started_at
)
INSERT INTO tasks_attempt (task_id, number, worker_id, outcome, started_at)
SELECT id, attempt, %(worker_id)s::text, 'released', started_at FROM ended
"""


def release(
    connection: Connection, worker_id: str, claims: Iterable[tuple[int, datetime]], *, park: bool = False
) -> int:
    """Give back claimed tasks that never started; `claims` are pairs of an id and the `started_at` of its claim.

    Returns the number of tasks that this worker still held. `park`: no worker here knows their function, so they become
    due a little later.
    """
    pairs = list(claims)
    ids, claimed_at = [id for id, _ in pairs], [at for _, at in pairs]
    params = {"worker_id": worker_id, "ids": ids, "claimed_at": claimed_at, "park": park}
    return len(fetch(connection, RELEASE, params)) if pairs else 0


def release_unknown(connection: Connection, worker_id: str, held: Iterable[int]) -> list[int]:
    """Give back the tasks claimed by this worker that are not in `held`, the ids that it has in memory."""
    rows = fetch(connection, RELEASE_UNKNOWN, {"worker_id": worker_id, "held": list(held)})
    return [row["id"] for row in rows]


def interrupt(connection: Connection, worker_id: str, task_id: int, attempt: int, *, cancel: bool = False) -> bool:
    """End a running attempt whose process was stopped on purpose: back to READY, or CANCELLED if requested."""
    params = {"worker_id": worker_id, "id": task_id, "attempt": attempt, "cancel": cancel}
    with connection.cursor() as cursor:
        cursor.execute(INTERRUPT, params)
        return bool(cursor.rowcount)
