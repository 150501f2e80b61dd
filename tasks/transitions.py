"""How a worker ends what it claimed: complete, fail, release. Each is fenced by id, version and claimed_by.

Endings are written many at a time: a commit per task is twenty times slower. A row that did not match is read again:
still this worker's claim and attempt (somebody edited the row harmlessly) -> ended on the version it has now; anything
else -> the write is refused, recorded in `tasks_refusedwrite` and dropped.
"""

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tasks.claims import Claim
from tasks.database import Connection, fetch, transaction
from tasks.exceptions import LostClaim

logger = logging.getLogger(__name__)
UNKNOWN_VERSION = 0  # matches no row, so that the version is read again

# No `status` in the WHERE: the planner would take the partial index on it and go quadratic in the batch.
# Times come as seconds ago, so that only the database's clock is written.
COMPLETE = """
WITH done AS (
    UPDATE tasks_task AS task SET
        status = 'COMPLETED', version = task.version + 1, claimed_by = NULL, finished_by = %(worker_id)s::text,
        return_value = ending.return_value::jsonb, cancel_requested_at = NULL,
        started_at = statement_timestamp() - make_interval(secs => ending.started_ago),
        finished_at = statement_timestamp() - make_interval(secs => ending.finished_ago)
    FROM unnest(%(ids)s::bigint[], %(versions)s::int[], %(return_values)s::text[],
                %(started_ago)s::float8[], %(finished_ago)s::float8[])
        AS ending (id, version, return_value, started_ago, finished_ago)
    WHERE task.id = ending.id AND task.version = ending.version AND task.claimed_by = %(worker_id)s::text
    RETURNING task.id, task.queue_name, task.started_at - task.run_after AS waited,
        task.finished_at - task.started_at AS ran
), rollup AS (
    INSERT INTO tasks_throughput AS sum (minute, queue_name, shard, completed, run_ms, wait_ms)
    SELECT date_trunc('minute', statement_timestamp()), queue_name, hashtext(%(worker_id)s::text) & 15, count(*),
        1000 * sum(extract(epoch FROM ran)), 1000 * sum(greatest(0, extract(epoch FROM waited)))
    FROM done GROUP BY queue_name
    ON CONFLICT (minute, queue_name, shard) DO UPDATE SET completed = sum.completed + excluded.completed,
        run_ms = sum.run_ms + excluded.run_ms, wait_ms = sum.wait_ms + excluded.wait_ms
)
SELECT id FROM done
"""

# A cancel that was asked for meanwhile wins over the retry.
FAIL = """
WITH ending AS MATERIALIZED (
    SELECT * FROM unnest(%(ids)s::bigint[], %(versions)s::int[], %(retry_seconds)s::float8[], %(outcomes)s::text[],
        %(exception_classes)s::text[], %(tracebacks)s::text[], %(started_ago)s::float8[], %(finished_ago)s::float8[])
        AS ending (id, version, retry_seconds, outcome, exception_class, traceback, started_ago, finished_ago)
), ended AS (
    UPDATE tasks_task AS task SET
        status = CASE WHEN task.cancel_requested_at IS NOT NULL THEN 'CANCELLED'
                      WHEN task.attempt < task.max_attempts THEN 'READY' ELSE 'FAILED' END,
        version = task.version + 1, claimed_by = NULL,
        run_after = CASE WHEN task.cancel_requested_at IS NULL AND task.attempt < task.max_attempts
                         THEN statement_timestamp() + make_interval(secs => ending.retry_seconds)
                         ELSE task.run_after END,
        started_at = statement_timestamp() - make_interval(secs => ending.started_ago),
        finished_at = CASE WHEN task.cancel_requested_at IS NULL AND task.attempt < task.max_attempts THEN NULL
                           ELSE statement_timestamp() - make_interval(secs => ending.finished_ago) END
    FROM ending
    WHERE task.id = ending.id AND task.version = ending.version AND task.claimed_by = %(worker_id)s::text
    RETURNING task.id, task.queue_name, task.attempt, task.started_at, ending.outcome, ending.exception_class,
        ending.traceback, ending.finished_ago
), attempt AS (
    INSERT INTO tasks_attempt (task_id, number, worker_id, outcome, exception_class, traceback, started_at, finished_at)
    SELECT id, attempt, %(worker_id)s::text, outcome, exception_class, traceback, started_at,
        statement_timestamp() - make_interval(secs => finished_ago) FROM ended
), rollup AS (
    INSERT INTO tasks_throughput AS sum (minute, queue_name, shard, failed)
    SELECT date_trunc('minute', statement_timestamp()), queue_name, hashtext(%(worker_id)s::text) & 15, count(*)
    FROM ended GROUP BY queue_name
    ON CONFLICT (minute, queue_name, shard) DO UPDATE SET failed = sum.failed + excluded.failed
)
SELECT id FROM ended
"""

READ_AGAIN = """
SELECT id, version, attempt, claimed_by FROM tasks_task WHERE id = ANY(%(ids)s::bigint[])
"""

REFUSE = """
INSERT INTO tasks_refusedwrite (task_id, worker_id, expected_version, actual_version, intent)
SELECT refused.id, %(worker_id)s::text, refused.version, task.version, refused.intent
FROM unnest(%(ids)s::bigint[], %(versions)s::int[], %(intents)s::text[]) AS refused (id, version, intent)
LEFT JOIN tasks_task AS task ON task.id = refused.id
"""

FREE = """
SELECT id FROM tasks_task WHERE id = ANY(%(ids)s::bigint[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
"""

# The attempt is given back: these rows were claimed ahead and never started. `claimed_by` and `attempt` name the claim
# exactly; the version is not asked, since a harmless edit meanwhile must not strand the row. A row whose function
# nobody here knows is parked for longer the older it is, so that it is not claimed again in the same moment.
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
FROM unnest(%(ids)s::bigint[], %(attempts)s::int[]) AS unstarted (id, attempt)
WHERE task.id = unstarted.id AND task.attempt = unstarted.attempt AND task.claimed_by = %(worker_id)s::text
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
        status = CASE WHEN task.cancel_requested_at IS NULL THEN 'READY' ELSE 'CANCELLED' END,
        version = task.version + 1, claimed_by = NULL, max_attempts = least(task.max_attempts + 1, 32767),
        finished_at = CASE WHEN task.cancel_requested_at IS NULL THEN NULL ELSE statement_timestamp() END
    WHERE task.id = %(id)s::bigint AND task.attempt = %(attempt)s::int AND task.claimed_by = %(worker_id)s::text
    RETURNING task.id, task.attempt, task.started_at
)
INSERT INTO tasks_attempt (task_id, number, worker_id, outcome, started_at)
SELECT id, attempt, %(worker_id)s::text, 'released', started_at FROM ended
"""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt did not succeed. `retry_seconds`: when the next one is due, if there is one."""

    exception_class: str
    traceback: str
    retry_seconds: float
    outcome: str = "failed"


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of one attempt. Times are `time.monotonic()` of this machine; `return_value` is JSON text or None."""

    id: int
    version: int
    attempt: int
    started: float
    finished: float
    return_value: str | None = None
    failure: Failure | None = None


@dataclass
class Flush:
    """What became of the endings: counts, and those that could not be written yet because their row is locked."""

    completed: int = 0
    failed: int = 0
    rebased: int = 0
    refused: list[int] = field(default_factory=list)
    locked: list[Ending] = field(default_factory=list)


def flush(connection: Connection, worker_id: str, endings: Sequence[Ending], *, skip_locked: bool = False) -> Flush:
    """Write the endings in one transaction. With `skip_locked`, rows that somebody else has locked stay unwritten."""
    result = Flush()
    with transaction(connection):
        if skip_locked:
            free = {row["id"] for row in fetch(connection, FREE, {"ids": [ending.id for ending in endings]})}
            result.locked = [ending for ending in endings if ending.id not in free]
            endings = [ending for ending in endings if ending.id in free]
        missed = _write(connection, worker_id, endings, result)
        if missed:
            _settle(connection, worker_id, missed, result)
    return result


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


def release(connection: Connection, worker_id: str, claims: Iterable[tuple[int, int]], *, park: bool = False) -> int:
    """Give back claimed tasks that never started, each as (id, attempt); the count of those that still were its own.

    `park`: nobody here knows their function, so they become due a little later.
    """
    pairs = list(claims)
    ids, attempts = [id for id, _ in pairs], [attempt for _, attempt in pairs]
    params = {"worker_id": worker_id, "ids": ids, "attempts": attempts, "park": park}
    return len(fetch(connection, RELEASE, params)) if pairs else 0


def release_unknown(connection: Connection, worker_id: str, held: Iterable[int]) -> list[int]:
    """Give back what is claimed by this worker and not among `held`, the ids that it holds in memory."""
    rows = fetch(connection, RELEASE_UNKNOWN, {"worker_id": worker_id, "held": list(held)})
    return [row["id"] for row in rows]


def interrupt(connection: Connection, worker_id: str, task_id: int, attempt: int) -> bool:
    """End a running attempt whose process was stopped on purpose: back to READY, or CANCELLED when that was asked."""
    with connection.cursor() as cursor:
        cursor.execute(INTERRUPT, {"worker_id": worker_id, "id": task_id, "attempt": attempt})
        return bool(cursor.rowcount)


def _flush_one(connection: Connection, worker_id: str, ending: Ending) -> None:
    if flush(connection, worker_id, [ending]).refused:
        raise LostClaim(f"Task {ending.id} is no longer held by worker {worker_id}; its late write was refused.")


def _write(connection: Connection, worker_id: str, endings: Sequence[Ending], result: Flush) -> list[Ending]:
    """One statement for the completions, one for the failures; gives back the endings whose row did not match."""
    completions = [ending for ending in endings if ending.failure is None]
    failures = [ending for ending in endings if ending.failure is not None]
    written: set[int] = set()
    if completions:
        done = fetch(connection, COMPLETE, _completion_params(worker_id, completions))
        result.completed += len(done)
        written.update(row["id"] for row in done)
    if failures:
        ended = fetch(connection, FAIL, _failure_params(worker_id, failures))
        result.failed += len(ended)
        written.update(row["id"] for row in ended)
    return [ending for ending in endings if ending.id not in written]


def _settle(connection: Connection, worker_id: str, missed: list[Ending], result: Flush) -> None:
    """Endings whose row has moved on: still ours -> write on its version of now; else refuse and record."""
    now = {row["id"]: row for row in fetch(connection, READ_AGAIN, {"ids": [ending.id for ending in missed]})}
    ours = [
        replace(ending, version=now[ending.id]["version"])
        for ending in missed
        if ending.id in now
        and now[ending.id]["claimed_by"] == worker_id
        and now[ending.id]["attempt"] == ending.attempt
    ]
    still_missed = _write(connection, worker_id, ours, result) if ours else []
    result.rebased += len(ours) - len(still_missed)
    ids_ours = {ending.id for ending in ours} - {ending.id for ending in still_missed}
    refused = [ending for ending in missed if ending.id not in ids_ours]
    if refused:
        _refuse(connection, worker_id, refused)
        result.refused += [ending.id for ending in refused]


def _refuse(connection: Connection, worker_id: str, refused: list[Ending]) -> None:
    logger.warning("late writes of worker %s refused for tasks %s", worker_id, [ending.id for ending in refused])
    params = {
        "worker_id": worker_id,
        "ids": [ending.id for ending in refused],
        "versions": [ending.version for ending in refused],
        "intents": ["fail" if ending.failure else "complete" for ending in refused],
    }
    with connection.cursor() as cursor:
        cursor.execute(REFUSE, params)


def _completion_params(worker_id: str, endings: list[Ending]) -> dict[str, Any]:
    return {**_common_params(worker_id, endings), "return_values": [ending.return_value for ending in endings]}


def _failure_params(worker_id: str, endings: list[Ending]) -> dict[str, Any]:
    failures = [ending.failure for ending in endings if ending.failure is not None]
    return {
        **_common_params(worker_id, endings),
        "retry_seconds": [failure.retry_seconds for failure in failures],
        "outcomes": [failure.outcome for failure in failures],
        "exception_classes": [failure.exception_class for failure in failures],
        "tracebacks": [failure.traceback for failure in failures],
    }


def _common_params(worker_id: str, endings: list[Ending]) -> dict[str, Any]:
    now = time.monotonic()
    return {
        "worker_id": worker_id,
        "ids": [ending.id for ending in endings],
        "versions": [ending.version for ending in endings],
        "started_ago": [now - ending.started for ending in endings],
        "finished_ago": [now - ending.finished for ending in endings],
    }
