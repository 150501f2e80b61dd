"""Write new tasks into the table: one statement for one task, or for some thousands.

Both use Django's connection and so the caller's transaction: tasks and the caller's rows commit together or not at all.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from datetime import datetime
from typing import Any, TypeVar

from django.db import connection as default_connection
from django.db import transaction

from tasks.compat import Task
from tasks.exceptions import InvalidArguments
from tasks.framework import keyed, payload
from tasks.framework.arguments import ENCODER, Call, Calls, Enqueued, Inserted, encode_call, max_bytes
from tasks.framework.declaration import PostgresTask
from tasks.support import tracing
from tasks.support.database import Connection

Key = TypeVar("Key")

# Larger statements are not faster, and jsonb is limited to 256 MB.
CHUNK_ROWS = 5000
CHUNK_CHARACTERS = 16_000_000

# run_after and created_at share one clock reading: if they differ, the task is deferred.
INSERT_ONE = """
INSERT INTO tasks_task (task_path, queue_name, priority, args, kwargs, run_after, max_attempts, ordering_key,
    traceparent)
VALUES (%(task_path)s::text, %(queue_name)s::text, %(priority)s::smallint, %(call)s::jsonb -> 0, %(call)s::jsonb -> 1,
        coalesce(%(run_after)s::timestamptz, statement_timestamp()), %(max_attempts)s::smallint,
        %(ordering_key)s::text, %(traceparent)s::text)
RETURNING id, created_at
"""

# One JSON array of [args, kwargs, ordering key] is 1.4 times as fast as unnest() of three arrays. Psycopg quotes array
# elements one by one. Ids follow the order of the array. (For one row, planning this costs more than the insert.)
INSERT_MANY = """
WITH inserted AS (
    INSERT INTO tasks_task (task_path, queue_name, priority, args, kwargs, run_after, max_attempts, ordering_key,
        traceparent)
    SELECT %(task_path)s::text, %(queue_name)s::text, %(priority)s::smallint, call -> 0, call -> 1,
           coalesce(%(run_after)s::timestamptz, statement_timestamp()), %(max_attempts)s::smallint, call ->> 2,
           %(traceparent)s::text
    FROM jsonb_array_elements(%(calls)s::jsonb) AS call
    RETURNING id, created_at
)
SELECT array_agg(id ORDER BY id), min(created_at) FROM inserted
"""

# Held until the caller commits: the key's next enqueuer draws its id after this row is visible. All enqueuers lock in
# one order. At most 1024 locks, because all sessions share the server's lock table (max_locks_per_transaction).
LOCK_KEYS = """
SELECT pg_advisory_xact_lock(hashtext('rowlock:order:' || current_schema()), place)
FROM (SELECT DISTINCT hashtext(key) & 1023 AS place FROM unnest(%(keys)s::text[]) AS key ORDER BY place) AS places
"""


def enqueue_many(task: Task, calls: Calls) -> Enqueued:
    """Enqueue one task of this function for each `(args, kwargs)`, all or none; returns their ids.

    `calls` may be a generator. Raises InvalidArguments that names the call by its position from 0.
    """
    return PostgresTask.of(task).enqueue_many(calls)


def insert_one(task: PostgresTask, call: Call, connection: Connection = default_connection) -> Inserted:
    """Write one task, or find the one that has its unique key; another connection than Django's is in a transaction.

    Raises InvalidArguments for an invalid key, and KeyBusy if another transaction holds up the unique key.
    """
    call = payload.sealed_call(call) if payload.seals(task) else call
    with tracing.publishing(task.queue_name, task.module_path) as published:
        row = _insert_one(task, call, {**_columns(task), "traceparent": published.traceparent}, connection)
        published.note("message.id", str(row.id))
        return row


def _insert_one(task: PostgresTask, call: Call, columns: Mapping[str, Any], connection: Connection) -> Inserted:
    if task.has_keys:
        keys = task.keys_of(call)

        def write() -> Inserted:
            return keyed.insert(task, columns, [(call, keys)], connection)[0]

        return _in_order(task, keys.ordering, write, connection)
    key = task.ordering_key_of(call)
    params = {**columns, "call": call.json, "ordering_key": key}
    return _in_order(task, key, lambda: _insert_plain(params, call, connection), connection)


def insert_many(task: PostgresTask, calls: Calls, announce: Callable[[Inserted], object] | None = None) -> Enqueued:
    """Write one task for each `(args, kwargs)` in the order given, all or none; returns their ids.

    `announce` is called with each new row, before the caller's transaction ends. Raises InvalidArguments that names the
    call by its position from 0, and KeyBusy as `insert_one` does.
    """
    with tracing.publishing(task.queue_name, task.module_path) as published, transaction.atomic():
        ids = _insert_many(task, calls, {**_columns(task), "traceparent": published.traceparent}, announce)
        published.note("batch.message_count", len(ids))
    return ids


def _insert_many(
    task: PostgresTask, calls: Calls, columns: Mapping[str, Any], announce: Callable[[Inserted], object] | None
) -> Enqueued:
    ids = Enqueued()
    key_of: Callable[[Call], Any] = task.keys_of if task.has_keys else task.ordering_key_of
    entries: Iterable[tuple[Call, Any]] = _encoded(task, calls, key_of)
    if task.ordered_by_commit:
        entries = list(entries)
        keys = [keys.ordering if task.has_keys else keys for _, keys in entries]
        _execute(LOCK_KEYS, {"keys": [key for key in keys if key]})
    for chunk in _chunks(entries):
        if task.has_keys:
            new = ids.add(keyed.insert(task, columns, chunk))
        else:
            new_ids, created_at = _insert_chunk(columns, chunk)
            ids += new_ids
            new = (Inserted(task_id, created_at, call) for task_id, (call, _) in zip(new_ids, chunk, strict=True))
        if announce:
            for row in new:
                announce(row)
    return ids


def _in_order(task: PostgresTask, key: str | None, write: Callable[[], Inserted], connection: Connection) -> Inserted:
    if not (task.ordered_by_commit and key):
        return write()
    with transaction.atomic(savepoint=False) if connection is default_connection else nullcontext():
        _execute(LOCK_KEYS, {"keys": [key]}, connection)
        return write()


def _insert_plain(params: Mapping[str, Any], call: Call, connection: Connection) -> Inserted:
    [(task_id, created_at)] = _execute(INSERT_ONE, params, connection)
    return Inserted(task_id, created_at, call)


def _insert_chunk(columns: Mapping[str, Any], chunk: list[tuple[Call, str | None]]) -> tuple[list[int], datetime]:
    calls = ",".join(_json(call, key) for call, key in chunk)
    [(ids, created_at)] = _execute(INSERT_MANY, {**columns, "calls": f"[{calls}]"})
    return ids, created_at


def _columns(task: PostgresTask) -> dict[str, Any]:
    return {
        "task_path": task.module_path,
        "queue_name": task.queue_name,
        "priority": int(task.priority),
        "run_after": task.run_after,
        "max_attempts": task.attempts_allowed(),
    }


def _json(call: Call, key: str | None) -> str:
    return f"{call.json[:-1]},{'null' if key is None else ENCODER.encode(key)}]"


def _encoded(task: PostgresTask, calls: Calls, key_of: Callable[[Call], Key]) -> Iterator[tuple[Call, Key]]:
    limit, seals = max_bytes(), payload.seals(task)
    for position, (args, kwargs) in enumerate(calls):
        try:
            call = encode_call(args, kwargs, limit)
            yield payload.sealed_call(call) if seals else call, key_of(call)
        except InvalidArguments as error:
            raise InvalidArguments(f"Call {position}: {error}") from error


def _chunks(entries: Iterable[tuple[Call, Key]]) -> Iterator[list[tuple[Call, Key]]]:
    chunk: list[tuple[Call, Key]] = []
    characters = 0
    for call, key in entries:
        chunk.append((call, key))
        characters += len(call.json)
        if len(chunk) == CHUNK_ROWS or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _execute(sql: str, params: Mapping[str, Any], connection: Connection = default_connection) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows
