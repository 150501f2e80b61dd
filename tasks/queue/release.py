"""Give claimed tasks back. One that never started gets its attempt back; one interrupted may make one attempt more.

A release is fenced by id, claimed_by and the time of the claim.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

import psycopg

from tasks.queue import set_aside, wakeup
from tasks.queue.set_aside import Writes
from tasks.support.database import Connection, execute, fetch

Unstarted = tuple[int, datetime]  # the id of a row that has not begun, and the time of its claim

# Why a worker cannot begin a task that others may be able to run.
UNKNOWN = "tasks.exceptions.UnknownTask"
LOCKED = "tasks.exceptions.PayloadLocked"

# The attempt is given back, because these rows were claimed ahead and never started. `claimed_by` and `started_at`
# identify the claim. The attempt does not: the worker may release a task and claim it again with the same number. Then
# a late release (the supervisor's, after an outage) would take the task away while it runs. The version does not
# either: a harmless edit meanwhile must not strand the row. A row whose function or key is not here is parked, so that
# it is not claimed again at once. The older it is, the longer it waits. Each worker records that once for the task's
# timeline.
RELEASE = """
WITH given_back AS (
    UPDATE tasks_task AS task SET
        status = CASE WHEN task.cancel_requested_at IS NULL THEN 'READY' ELSE 'CANCELLED' END,
        version = task.version + 1, claimed_by = NULL, attempt = task.attempt - 1,
        finished_at = CASE WHEN task.cancel_requested_at IS NULL THEN NULL ELSE statement_timestamp() END,
        started_at = NULL,
        run_after = CASE WHEN %(parked_for)s::text <> ''
            THEN statement_timestamp() + least(interval '5 minutes', greatest(interval '5 seconds',
                (statement_timestamp() - task.created_at) / 2))
            ELSE task.run_after END
    FROM unnest(%(ids)s::bigint[], %(claimed_at)s::timestamptz[]) AS unstarted (id, claimed_at)
    WHERE task.id = unstarted.id AND task.started_at = unstarted.claimed_at AND task.claimed_by = %(worker_id)s::text
    RETURNING task.id, task.attempt
), recorded AS (
    INSERT INTO tasks_attempt (task_id, number, worker_id, outcome, exception_class)
    SELECT id, attempt + 1, %(worker_id)s::text, 'released', %(parked_for)s::text
    FROM given_back
    WHERE %(parked_for)s::text <> '' AND NOT EXISTS (
        SELECT FROM tasks_attempt AS earlier WHERE earlier.task_id = given_back.id
            AND earlier.worker_id = %(worker_id)s::text AND earlier.exception_class = %(parked_for)s::text)
)
SELECT id FROM given_back
"""

# A claim can commit while its answer is lost. Then the worker holds rows that it does not know.
RELEASE_UNKNOWN = """
UPDATE tasks_task AS task SET
    status = CASE WHEN task.cancel_requested_at IS NULL THEN 'READY' ELSE 'CANCELLED' END,
    version = task.version + 1, claimed_by = NULL, attempt = task.attempt - 1, started_at = NULL,
    finished_at = CASE WHEN task.cancel_requested_at IS NULL THEN NULL ELSE statement_timestamp() END
WHERE task.status = 'PROCESSING' AND task.claimed_by = %(worker_id)s::text AND task.id <> ALL(%(held)s::bigint[])
RETURNING task.id
"""

# A stop or a cancel interrupted the task while it ran. The attempt keeps its number, and one more is allowed.
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

# Rows of a worker beside those that are known.
UNLISTED = """
SELECT task.id, task.started_at FROM tasks_task AS task
WHERE task.status = 'PROCESSING' AND task.claimed_by = %(worker_id)s::text AND task.id <> ALL(%(ids)s::bigint[])
"""
WAIT_FOR_NOBODY = "SET LOCAL lock_timeout = '20ms'"


def release(connection: Connection, worker_id: str, claims: Iterable[Unstarted], *, parked_for: str = "") -> int:
    """Give back claimed tasks that never started.

    With `parked_for`, UNKNOWN or LOCKED, they become due a little later, because this worker cannot begin them. Returns
    the number of tasks that this worker still held.
    """
    pairs = list(claims)
    ids, claimed_at = [id for id, _ in pairs], [at for _, at in pairs]
    params = {"worker_id": worker_id, "ids": ids, "claimed_at": claimed_at, "parked_for": parked_for}
    return len(fetch(connection, RELEASE, params)) if pairs else 0


def release_unknown(connection: Connection, worker_id: str, held: Iterable[int]) -> list[int]:
    """Give back this worker's claimed tasks, except for `held`, the ids that it has in memory."""
    rows = fetch(connection, RELEASE_UNKNOWN, {"worker_id": worker_id, "held": list(held)})
    return [row["id"] for row in rows]


def interrupt(connection: Connection, worker_id: str, task_id: int, attempt: int, *, cancel: bool = False) -> bool:
    """End a running attempt whose process was stopped on purpose; its task becomes READY or CANCELLED."""
    params = {"worker_id": worker_id, "id": task_id, "attempt": attempt, "cancel": cancel}
    return bool(execute(connection, INTERRUPT, params))


def unlisted(connection: Connection, worker_id: str, ids: list[int]) -> list[Unstarted]:
    """The rows that this worker holds beside these."""
    rows = fetch(connection, UNLISTED, {"worker_id": worker_id, "ids": ids})
    return [(row["id"], row["started_at"]) for row in rows]


def give_back(connection: Connection, worker_id: str, unstarted: list[Unstarted]) -> None:
    """Give back rows that have not begun; recovery sets aside what the database refuses.

    Raises LockNotAvailable if a row was locked: it is to be tried again.
    """
    claimed_at = dict(unstarted)

    def work(writes: Writes) -> None:
        def write(ids: Sequence[int]) -> list[int]:
            if writes.is_careful:
                execute(connection, WAIT_FOR_NOBODY)
            return [release(connection, worker_id, [(id, claimed_at[id]) for id in ids])]

        if sum(writes.for_tasks(list(claimed_at), write)):
            wakeup.announce(connection)
        for error in writes.tasks.values():
            if isinstance(error, psycopg.errors.LockNotAvailable):
                raise error

    set_aside.attempt(connection, work)


def give_back_unlisted(connection: Connection, worker_id: str, begun: list[int]) -> None:
    """Give back what this worker holds beside the tasks that it has begun. Raises as `give_back`."""
    give_back(connection, worker_id, unlisted(connection, worker_id, begun))
