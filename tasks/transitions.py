"""How a worker ends what it claimed: complete, fail, release. Each is fenced by what names the claim.

Complete and fail go through `tasks.flush`, one task or many; what is given back is named by id, claimed_by and
the time of the claim.
"""

import time
from collections.abc import Iterable
from datetime import datetime

from tasks.claimer import Claim
from tasks.database import Connection, fetch
from tasks.exceptions import LostClaim
from tasks.flush import Ending, Failure, Flush, flush
from tasks.sending import send

__all__ = [
    "Ending",
    "Failure",
    "Flush",
    "complete",
    "end_running",
    "fail",
    "flush",
    "interrupt",
    "release",
    "release_unknown",
    "send",
]

UNKNOWN_VERSION = 0  # matches no row, so that the version is read again

# The attempt is given back: these rows were claimed ahead and never started. `claimed_by` and `started_at` name the
# claim exactly. Not the attempt: given back and claimed again by the same worker, it has the same number, and a release
# that was late (the supervisor's, after an outage) would take it away while it runs. Nor the version, since a harmless
# edit meanwhile must not strand the row. A row whose function nobody here knows is parked for longer the older it is,
# so that it is not claimed again in the same moment.
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

# A claim can commit while its answer is lost: such rows stand under this worker's id, and it does not know of them.
RELEASE_UNKNOWN = """
UPDATE tasks_task AS task SET
    status = CASE WHEN task.cancel_requested_at IS NULL THEN 'READY' ELSE 'CANCELLED' END,
    version = task.version + 1, claimed_by = NULL, attempt = task.attempt - 1, started_at = NULL,
    finished_at = CASE WHEN task.cancel_requested_at IS NULL THEN NULL ELSE statement_timestamp() END
WHERE task.status = 'PROCESSING' AND task.claimed_by = %(worker_id)s::text AND task.id <> ALL(%(held)s::bigint[])
RETURNING task.id
"""

# Interrupted while it ran, by a stop or a cancel: the attempt keeps its number, and the allowance grows by it.
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


def complete(connection: Connection, worker_id: str, claim: Claim, return_value: str | None = None) -> None:
    """Complete one claimed task now; raises LostClaim when it is no longer this worker's."""
    now = time.monotonic()
    _flush_one(connection, worker_id, Ending(claim.id, claim.version, claim.attempt, now, now, return_value))


def fail(connection: Connection, worker_id: str, claim: Claim, failure: Failure) -> None:
    """End one attempt as failed now; raises LostClaim when the task is no longer this worker's."""
    now = time.monotonic()
    _flush_one(connection, worker_id, Ending(claim.id, claim.version, claim.attempt, now, now, failure=failure))


def end_running(
    connection: Connection, worker_id: str, task_id: int, attempt: int, seconds: float, failure: Failure
) -> None:
    """Fail the attempt that a dead child was running since `seconds`; its version is read from the row."""
    now = time.monotonic()
    flush(connection, worker_id, [Ending(task_id, UNKNOWN_VERSION, attempt, now - seconds, now, failure=failure)])


def release(
    connection: Connection, worker_id: str, claims: Iterable[tuple[int, datetime]], *, park: bool = False
) -> int:
    """Give back claimed tasks that never started, each as its id and the `started_at` of its claim.

    Gives the count of those that still were its own. `park`: nobody here knows their function, so they become due a
    little later.
    """
    pairs = list(claims)
    ids, claimed_at = [id for id, _ in pairs], [at for _, at in pairs]
    params = {"worker_id": worker_id, "ids": ids, "claimed_at": claimed_at, "park": park}
    return len(fetch(connection, RELEASE, params)) if pairs else 0


def release_unknown(connection: Connection, worker_id: str, held: Iterable[int]) -> list[int]:
    """Give back what is claimed by this worker and not among `held`, the ids that it holds in memory."""
    rows = fetch(connection, RELEASE_UNKNOWN, {"worker_id": worker_id, "held": list(held)})
    return [row["id"] for row in rows]


def interrupt(connection: Connection, worker_id: str, task_id: int, attempt: int, *, cancel: bool = False) -> bool:
    """End a running attempt whose process was stopped on purpose: back to READY, or CANCELLED when that was asked."""
    params = {"worker_id": worker_id, "id": task_id, "attempt": attempt, "cancel": cancel}
    with connection.cursor() as cursor:
        cursor.execute(INTERRUPT, params)
        return bool(cursor.rowcount)


def _flush_one(connection: Connection, worker_id: str, ending: Ending) -> None:
    if flush(connection, worker_id, [ending]).refused:
        raise LostClaim(f"Task {ending.id} is no longer held by worker {worker_id}; its late write was refused.")
