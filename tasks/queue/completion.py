"""Write how attempts ended, many at a time: a commit per task is twenty times slower.

Each ending is fenced by id, version and claimed_by. A row that does not match is read again. If it is still this
worker's claim and attempt, somebody has only edited it. Then the ending is written on its version of now. If not, the
write is refused, recorded in `tasks_refusedwrite` and dropped.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg

from tasks import conf
from tasks.queue.throughput import BOUNDS_SECONDS, Sums, SumsByQueue, add_up
from tasks.support.database import Connection, execute, fetch, pipelined, rows_of, transaction
from tasks.support.reading import one_line

logger = logging.getLogger(__name__)

LONGEST_RELEASE = 200  # characters
RELEASED = "released"  # the outcome of an attempt that was interrupted on purpose

# No `status` in the WHERE: the planner would take the partial index on it and go quadratic in the batch.
# Times come as microseconds ago, so that only the database's clock is written. EXTRACT would make a numeric of each.
COMPLETE = """
WITH done AS (
    UPDATE tasks_task AS task SET
        status = 'COMPLETED', version = task.version + 1, claimed_by = NULL, finished_by = %(worker_id)s::text,
        return_value = ending.return_value::jsonb, cancel_requested_at = NULL,
        started_at = statement_timestamp() - ending.started_ago * interval '1 microsecond',
        finished_at = statement_timestamp() - ending.finished_ago * interval '1 microsecond'
    FROM unnest(%(ids)s::bigint[], %(versions)s::int[], %(return_values)s::text[],
                %(started_ago)s::bigint[], %(finished_ago)s::bigint[])
        AS ending (id, version, return_value, started_ago, finished_ago)
    WHERE task.id = ending.id AND task.version = ending.version AND task.claimed_by = %(worker_id)s::text
    RETURNING task.id, task.queue_name,
        greatest(0, date_part('epoch', task.started_at - task.run_after)) AS waited,
        date_part('epoch', task.finished_at - task.started_at) AS ran
)
SELECT queue_name, array_agg(id) AS ids, 1000 * sum(ran) AS run_ms, 1000 * sum(waited) AS wait_ms,
    array_agg(width_bucket(ran, %(bounds)s::float8[])) AS run_buckets,
    array_agg(width_bucket(waited, %(bounds)s::float8[])) AS wait_buckets
FROM done GROUP BY queue_name
"""

# A cancel that was asked for meanwhile wins over the retry. The fingerprint names the failure: see models/task.py.
FAIL = """
WITH ending AS MATERIALIZED (
    SELECT * FROM unnest(%(ids)s::bigint[], %(versions)s::int[], %(retry_seconds)s::float8[], %(outcomes)s::text[],
        %(exception_classes)s::text[], %(tracebacks)s::text[], %(places)s::text[], %(traceparents)s::text[],
        %(started_ago)s::bigint[], %(finished_ago)s::bigint[])
        AS ending (id, version, retry_seconds, outcome, exception_class, traceback, place, traceparent, started_ago,
            finished_ago)
), ended AS (
    UPDATE tasks_task AS task SET
        status = CASE WHEN task.cancel_requested_at IS NOT NULL THEN 'CANCELLED'
                      WHEN task.attempt < task.max_attempts AND ending.retry_seconds IS NOT NULL THEN 'READY'
                      ELSE 'FAILED' END,
        version = task.version + 1, claimed_by = NULL,
        run_after = CASE WHEN task.cancel_requested_at IS NULL AND task.attempt < task.max_attempts
                             AND ending.retry_seconds IS NOT NULL
                         THEN statement_timestamp() + make_interval(secs => ending.retry_seconds)
                         ELSE task.run_after END,
        started_at = statement_timestamp() - ending.started_ago * interval '1 microsecond',
        finished_at = CASE WHEN task.cancel_requested_at IS NULL AND task.attempt < task.max_attempts
                               AND ending.retry_seconds IS NOT NULL THEN NULL
                           ELSE statement_timestamp() - ending.finished_ago * interval '1 microsecond' END
    FROM ending
    WHERE task.id = ending.id AND task.version = ending.version AND task.claimed_by = %(worker_id)s::text
    RETURNING task.id, task.task_path, task.queue_name, task.attempt, task.started_at, ending.outcome,
        ending.exception_class, ending.traceback, ending.place, ending.traceparent, ending.finished_ago
), attempt AS (
    INSERT INTO tasks_attempt (task_id, number, worker_id, outcome, exception_class, traceback, started_at, finished_at,
        queue_name, release, fingerprint, traceparent)
    SELECT id, attempt, %(worker_id)s::text, outcome, exception_class, traceback, started_at,
        statement_timestamp() - finished_ago * interval '1 microsecond', queue_name, %(release)s::text,
        left(encode(sha256(convert_to(concat_ws('|', task_path, exception_class, place), 'UTF8')), 'hex'), 12)
            || ' ' || place, traceparent
    FROM ended
)
SELECT queue_name, array_agg(id) AS ids FROM ended GROUP BY queue_name
"""

# Our rows are locked, so that nobody edits them before the second write. Others may hold their rows for long, so those
# stay unlocked. `is_written`: the session was lost between our commit and its answer.
STILL_OURS = """
SELECT task.id, task.version, task.claimed_by IS NULL AS is_written
FROM tasks_task AS task JOIN unnest(%(ids)s::bigint[], %(attempts)s::int[]) AS missed (id, attempt)
    ON missed.id = task.id AND missed.attempt = task.attempt
WHERE task.claimed_by = %(worker_id)s::text
   OR (task.status = 'COMPLETED' AND task.finished_by = %(worker_id)s::text)
ORDER BY task.id FOR NO KEY UPDATE OF task
"""

REFUSE = """
INSERT INTO tasks_refusedwrite (task_id, worker_id, expected_version, actual_version, intent)
SELECT refused.id, %(worker_id)s::text, refused.version, task.version, refused.intent
FROM unnest(%(ids)s::bigint[], %(versions)s::int[], %(intents)s::text[]) AS refused (id, version, intent)
LEFT JOIN tasks_task AS task ON task.id = refused.id
"""

# Our rows that somebody else has locked. A row that is gone, or another worker's, is not among them: its ending must be
# refused.
LOCKED = """
WITH free AS MATERIALIZED (
    SELECT id FROM tasks_task WHERE id = ANY(%(ids)s::bigint[]) AND claimed_by = %(worker_id)s::text
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
SELECT id FROM tasks_task WHERE id = ANY(%(ids)s::bigint[]) AND claimed_by = %(worker_id)s::text
EXCEPT SELECT id FROM free
"""


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why an attempt did not succeed.

    `retry_seconds`: until the next one is due, if attempts are left; None: there is none. `place`: the file and the
    function that failed, if known. `traceparent`: the attempt's span, if it was recorded.
    """

    exception_class: str
    traceback: str
    retry_seconds: float | None
    outcome: str = "failed"
    place: str = ""
    traceparent: str | None = None


@dataclass(slots=True)  # frozen, each would take a microsecond to make
class Ending:
    """The end of one attempt. Times are `time.monotonic()` of this machine; `return_value` is JSON text or None.

    `epoch`: that in which the handler began, if its commits did not wait for the disk. A crash of the server, which
    begins another epoch, may have lost them.
    """

    id: int
    version: int
    attempt: int
    started: float
    finished: float
    return_value: str | None = None
    failure: Failure | None = None
    epoch: str | None = None


@dataclass
class Flush:
    """The result of a flush."""

    completed: int = 0
    failed: int = 0
    rebased: int = 0  # written on a newer version
    refused: list[int] = field(default_factory=list)  # ids of tasks that this worker no longer holds
    locked: list[Ending] = field(default_factory=list)  # not written yet
    sums: defaultdict[str, Sums] = field(default_factory=lambda: defaultdict(Sums))  # by queue


def flush(
    connection: Connection,
    worker_id: str,
    endings: Sequence[Ending],
    *,
    skip_locked: bool = False,
    carried: SumsByQueue | None = None,
) -> Flush:
    """Write the endings in one transaction, with the sums that `send` left to be `carried`.

    With `skip_locked`, endings stay unwritten whose row somebody else has locked.
    """
    result = Flush()
    for queue_name, sums in (carried or {}).items():
        result.sums[queue_name].merge(sums)
    with transaction(connection):
        if skip_locked:
            params = {"worker_id": worker_id, "ids": [ending.id for ending in endings]}
            locked = {row["id"] for row in fetch(connection, LOCKED, params)}
            result.locked = [ending for ending in endings if ending.id in locked]
            endings = [ending for ending in endings if ending.id not in locked]
        missed = _write(connection, worker_id, endings, result)
        if missed:
            _write_again_or_refuse(connection, worker_id, missed, result)
        if result.sums:
            add_up(connection, worker_id, result.sums)
    return result


def _write(connection: Connection, worker_id: str, endings: Sequence[Ending], result: Flush) -> list[Ending]:
    """Write completions in one statement and failures in another; returns the endings whose row did not match."""
    completions = [ending for ending in endings if ending.failure is None]
    failures = [ending for ending in endings if ending.failure is not None]
    written: set[int] = set()
    if completions:
        written |= _note_completions(fetch(connection, COMPLETE, completion_params(worker_id, completions)), result)
    if failures:
        for row in fetch(connection, FAIL, _failure_params(worker_id, failures)):
            result.failed += len(row["ids"])
            result.sums[row["queue_name"]].failed += len(row["ids"])
            written.update(row["ids"])
    return [ending for ending in endings if ending.id not in written]


def _note_completions(rows: list[dict[str, Any]], result: Flush) -> set[int]:
    """Count the completions in the answer of COMPLETE; returns their ids."""
    written: set[int] = set()
    for row in rows:
        result.completed += len(row["ids"])
        result.sums[row["queue_name"]].add(row)
        written.update(row["ids"])
    return written


def _write_again_or_refuse(connection: Connection, worker_id: str, missed: list[Ending], result: Flush) -> None:
    """Write endings on the version of now where the row is still ours; refuse and record the others.

    Completions of an earlier flush whose answer was lost are counted and not written again.
    """
    ids, attempts = [ending.id for ending in missed], [ending.attempt for ending in missed]
    found = fetch(connection, STILL_OURS, {"worker_id": worker_id, "ids": ids, "attempts": attempts})
    versions = {row["id"]: row["version"] for row in found if not row["is_written"]}
    written = {row["id"] for row in found if row["is_written"]}
    ours = [replace(ending, version=versions[ending.id]) for ending in missed if ending.id in versions]
    _write(connection, worker_id, ours, result)
    result.completed += len(written)
    result.rebased += len(ours)
    refused = [ending for ending in missed if ending.id not in versions and ending.id not in written]
    if not refused:
        return
    result.refused = [ending.id for ending in refused]
    logger.warning("late writes of worker %s refused for tasks %s", worker_id, result.refused)
    params = {
        "worker_id": worker_id,
        "ids": result.refused,
        "versions": [ending.version for ending in refused],
        "intents": ["fail" if ending.failure else "complete" for ending in refused],
    }
    execute(connection, REFUSE, params)


def completion_params(worker_id: str, endings: Sequence[Ending]) -> dict[str, Any]:
    """The parameters of COMPLETE."""
    values = [ending.return_value for ending in endings]
    # If all are NULL, an empty list will do: `unnest` fills up the shorter array.
    return_values = values if any(value is not None for value in values) else []
    return {**_common_params(worker_id, endings), "return_values": return_values, "bounds": list(BOUNDS_SECONDS)}


def _failure_params(worker_id: str, endings: list[Ending]) -> dict[str, Any]:
    failures = [ending.failure for ending in endings if ending.failure is not None]
    return {
        **_common_params(worker_id, endings),
        "retry_seconds": [failure.retry_seconds for failure in failures],
        "outcomes": [failure.outcome for failure in failures],
        "exception_classes": [failure.exception_class for failure in failures],
        "tracebacks": [failure.traceback for failure in failures],
        "places": [failure.place or failure.outcome for failure in failures],
        "traceparents": [failure.traceparent for failure in failures],
        "release": one_line(str(conf.get("RELEASE")))[:LONGEST_RELEASE],
    }


def _common_params(worker_id: str, endings: Sequence[Ending]) -> dict[str, Any]:
    now = time.monotonic()
    return {
        "worker_id": worker_id,
        "ids": _numbers([ending.id for ending in endings]),
        "versions": _numbers([ending.version for ending in endings]),
        "started_ago": _numbers([int((now - ending.started) * 1e6) for ending in endings]),
        "finished_ago": _numbers([int((now - ending.finished) * 1e6) for ending in endings]),
    }


def _numbers(values: Iterable[int]) -> str:
    """An array in PostgreSQL's notation; for hundreds of numbers three times as fast as the driver's own."""
    return f"{{{','.join(map(str, values))}}}"


def send(
    connection: psycopg.Connection, worker_id: str, completions: Sequence[Ending], carried: SumsByQueue
) -> Callable[[], Flush]:
    """Send completions in a transaction of their own; returns the function that reads the answer.

    Until then the connection takes nothing else. Completions that did not match their row are `locked` in the answer,
    for a later flush that waits, and its sums are for that flush to carry. Only the reading raises psycopg.Error. A
    flush of the same endings then finds out whether the session was lost after the commit.
    """

    def work() -> psycopg.Cursor[Any]:
        cursor = connection.execute(COMPLETE, completion_params(worker_id, completions))
        if carried:
            add_up(connection, worker_id, carried)
        return cursor

    answer = pipelined(connection, work)

    def read() -> Flush:
        result = Flush()
        written = _note_completions(rows_of(answer()), result)
        result.locked = [ending for ending in completions if ending.id not in written]
        return result

    return read


def end_running(
    connection: Connection, worker_id: str, task_id: int, attempt: int, seconds: float, failure: Failure
) -> None:
    """Fail the attempt that a dead child had run for `seconds`."""
    now = time.monotonic()
    unknown_version = 0  # matches no row, so that the version is read again
    flush(connection, worker_id, [Ending(task_id, unknown_version, attempt, now - seconds, now, failure=failure)])
