"""Write new tasks into the table: one statement for one task, or for some thousands.

Both use Django's connection and so the caller's transaction: tasks and the caller's rows commit together or not at all.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import Any, NamedTuple

from django.db import connection as default_connection
from django.db import transaction

from tasks.compat import Task
from tasks.exceptions import InvalidArguments
from tasks.framework.arguments import ENCODER, Call, encode_call, max_bytes
from tasks.framework.declaration import PostgresTask
from tasks.support.database import Connection

Calls = Iterable[tuple[Sequence[Any], Mapping[str, Any]]]
Keyed = tuple[Call, str | None]  # a call and its ordering key

# Larger statements are not faster, and jsonb is limited to 256 MB.
CHUNK_ROWS = 5000
CHUNK_CHARACTERS = 16_000_000

# run_after and created_at share one clock reading: if they differ, the task is deferred.
INSERT_ONE = """
INSERT INTO tasks_task (task_path, queue_name, priority, args, kwargs, run_after, max_attempts, ordering_key)
VALUES (%(task_path)s::text, %(queue_name)s::text, %(priority)s::smallint, %(call)s::jsonb -> 0, %(call)s::jsonb -> 1,
        coalesce(%(run_after)s::timestamptz, statement_timestamp()), %(max_attempts)s::smallint,
        %(ordering_key)s::text)
RETURNING id, created_at
"""

# One JSON array of [args, kwargs, ordering key] is 1.4 times as fast as unnest() of three arrays. Psycopg quotes array
# elements one by one. Ids follow the order of the array. (For one row, planning this costs more than the insert.)
INSERT_MANY = """
WITH inserted AS (
    INSERT INTO tasks_task (task_path, queue_name, priority, args, kwargs, run_after, max_attempts, ordering_key)
    SELECT %(task_path)s::text, %(queue_name)s::text, %(priority)s::smallint, call -> 0, call -> 1,
           coalesce(%(run_after)s::timestamptz, statement_timestamp()), %(max_attempts)s::smallint, call ->> 2
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


class Inserted(NamedTuple):
    """One new row and its call."""

    id: int
    created_at: datetime
    call: Call


def enqueue_many(task: Task, calls: Calls) -> list[int]:
    """Enqueue one task of this function for each `(args, kwargs)`, all or none; returns their ids.

    `calls` may be a generator. Raises InvalidArguments that names the call by its position from 0.
    """
    return PostgresTask.of(task).enqueue_many(calls)


def insert_one(task: PostgresTask, call: Call, connection: Connection = default_connection) -> Inserted:
    """Write one task on either kind of connection; another one than Django's is in a transaction.

    Raises InvalidArguments for an invalid ordering key.
    """
    key = task.key_of(call)
    params = {**_columns(task), "call": call.json, "ordering_key": key}
    if not (task.ordered_by_commit and key):
        [(task_id, created_at)] = _execute(INSERT_ONE, params, connection)
    else:
        with transaction.atomic(savepoint=False) if connection is default_connection else nullcontext():
            _execute(LOCK_KEYS, {"keys": [key]}, connection)
            [(task_id, created_at)] = _execute(INSERT_ONE, params, connection)
    return Inserted(task_id, created_at, call)


def insert_many(task: PostgresTask, calls: Calls, announce: Callable[[Inserted], object] | None = None) -> list[int]:
    """Write one task for each `(args, kwargs)` in the order given, all or none; returns their ids.

    `announce` is called with each new row, before the caller's transaction ends. Raises InvalidArguments that names the
    call by its position from 0.
    """
    ids: list[int] = []
    with transaction.atomic():
        keyed: Iterable[Keyed] = _encoded(task, calls)
        if task.ordered_by_commit:
            keyed = list(keyed)
            _execute(LOCK_KEYS, {"keys": [key for _, key in keyed if key]})
        for chunk in _chunks(keyed):
            entries = ",".join(_json(call, key) for call, key in chunk)
            [(new, created_at)] = _execute(INSERT_MANY, {**_columns(task), "calls": f"[{entries}]"})
            ids += new
            if announce:
                for task_id, (call, _) in zip(new, chunk, strict=True):
                    announce(Inserted(task_id, created_at, call))
    return ids


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


def _encoded(task: PostgresTask, calls: Calls) -> Iterator[Keyed]:
    limit = max_bytes()
    for position, (args, kwargs) in enumerate(calls):
        try:
            call = encode_call(args, kwargs, limit)
            yield call, task.key_of(call)
        except InvalidArguments as error:
            raise InvalidArguments(f"Call {position}: {error}") from error


def _chunks(keyed: Iterable[Keyed]) -> Iterator[list[Keyed]]:
    chunk: list[Keyed] = []
    characters = 0
    for call, key in keyed:
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
