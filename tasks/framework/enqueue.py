"""Write new tasks into the table: one statement for one task, or for some thousands.

Both use Django's connection and so the caller's transaction: tasks and the caller's rows commit together or not at all.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.db import connection, transaction

from tasks.compat import Task
from tasks.exceptions import InvalidArguments
from tasks.framework.arguments import ENCODER, Call, encode_call, max_bytes
from tasks.framework.declaration import PostgresTask

Calls = Iterable[tuple[Sequence[Any], Mapping[str, Any]]]

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


class _Entry(NamedTuple):
    call: Call
    key: str | None

    def json(self) -> str:
        key = "null" if self.key is None else ENCODER.encode(self.key)
        return f"{self.call.json[:-1]},{key}]"


def enqueue_many(task: Task, calls: Calls) -> list[int]:
    """Enqueue one task of this function for each `(args, kwargs)`, all or none; returns their ids.

    `calls` may be a generator. Raises InvalidArguments that names the call by its position from 0.
    """
    return PostgresTask.of(task).enqueue_many(calls)


def insert_one(task: PostgresTask, call: Call) -> Inserted:
    """Write one task. Raises InvalidArguments for an invalid ordering key."""
    entry = _Entry(call, task.key_of(call))
    if not (task.ordered_by_commit and entry.key):
        return _insert(task, entry)
    with transaction.atomic(savepoint=False):
        _lock([entry])
        return _insert(task, entry)


def insert_many(task: PostgresTask, calls: Calls, announce: Callable[[Inserted], object] | None = None) -> list[int]:
    """Write one task for each `(args, kwargs)` in the order given, all or none; returns their ids.

    `announce` is called with each new row, before the caller's transaction ends. Raises InvalidArguments that names the
    call by its position from 0.
    """
    ids: list[int] = []
    with transaction.atomic():
        entries: Iterable[_Entry] = _encoded(task, calls)
        if task.ordered_by_commit:
            entries = list(entries)
            _lock(entries)
        for chunk in _chunks(entries):
            for row in _insert_chunk(task, chunk):
                ids.append(row.id)
                if announce:
                    announce(row)
    return ids


def _insert(task: PostgresTask, entry: _Entry) -> Inserted:
    params = _columns(task) | {"call": entry.call.json, "ordering_key": entry.key}
    [(task_id, created_at)] = _execute(INSERT_ONE, params)
    return Inserted(task_id, created_at, entry.call)


def _insert_chunk(task: PostgresTask, entries: list[_Entry]) -> list[Inserted]:
    params = _columns(task) | {"calls": f"[{','.join(entry.json() for entry in entries)}]"}
    [(ids, created_at)] = _execute(INSERT_MANY, params)
    return [Inserted(task_id, created_at, entry.call) for task_id, entry in zip(ids, entries, strict=True)]


def _columns(task: PostgresTask) -> dict[str, Any]:
    return {
        "task_path": task.module_path,
        "queue_name": task.queue_name,
        "priority": int(task.priority),
        "run_after": task.run_after,
        "max_attempts": task.attempts_allowed(),
    }


def _lock(entries: list[_Entry]) -> None:
    _execute(LOCK_KEYS, {"keys": [entry.key for entry in entries if entry.key]})


def _encoded(task: PostgresTask, calls: Calls) -> Iterator[_Entry]:
    limit = max_bytes()
    for position, (args, kwargs) in enumerate(calls):
        try:
            call = encode_call(args, kwargs, limit)
            yield _Entry(call, task.key_of(call))
        except InvalidArguments as error:
            raise InvalidArguments(f"Call {position}: {error}") from error


def _chunks(entries: Iterable[_Entry]) -> Iterator[list[_Entry]]:
    chunk: list[_Entry] = []
    characters = 0
    for entry in entries:
        chunk.append(entry)
        characters += len(entry.call.json)
        if len(chunk) == CHUNK_ROWS or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _execute(sql: str, params: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return cursor.fetchall()
