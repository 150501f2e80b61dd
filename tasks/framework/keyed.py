"""Write tasks that have a unique key, a concurrency key or a rate.

A partial unique index makes a unique key true (`models.HOLDS_UNIQUE_KEY`). An INSERT of a key that is taken writes
nothing, and the task that has it is looked up. If another transaction is taking or leaving the key, the INSERT waits
until it ends.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from django.db import OperationalError
from django.db import connection as default_connection

from tasks.exceptions import KeyBusy
from tasks.framework.arguments import ENCODER, Call, Inserted
from tasks.framework.declaration import Keys, PostgresTask
from tasks.support.database import Connection, is_lock_not_available
from tasks.support.durations import rate_of

# A key may be left between INSERT and look-up, and taken again before the next INSERT.
ROUNDS = 20

# Ids follow the order of the calls. The rows are written in the order of their keys, so that two batches with the same
# keys wait for each other in one direction only.
INSERT = """
WITH call AS MATERIALIZED (
    SELECT nextval((SELECT pg_get_serial_sequence('tasks_task', 'id')::regclass)) AS id, place,
        call -> 0 AS args, call -> 1 AS kwargs, call ->> 2 AS ordering_key, call ->> 3 AS unique_key,
        call ->> 4 AS concurrency_key, call ->> 5 AS rate_key
    FROM jsonb_array_elements(%(calls)s::jsonb) WITH ORDINALITY AS calls (call, place)
), inserted AS (
    INSERT INTO tasks_task (id, task_path, queue_name, priority, args, kwargs, run_after, max_attempts, ordering_key,
        unique_key, unique_while, concurrency_key, concurrency_limit, rate_key, rate, period_seconds, traceparent)
    SELECT id, %(task_path)s::text, %(queue_name)s::text, %(priority)s::smallint, args, kwargs,
        coalesce(%(run_after)s::timestamptz, statement_timestamp()), %(max_attempts)s::smallint, ordering_key,
        unique_key, CASE WHEN unique_key IS NOT NULL THEN %(unique_while)s::text END,
        concurrency_key, CASE WHEN concurrency_key IS NOT NULL THEN %(concurrency_limit)s::smallint END,
        rate_key, CASE WHEN rate_key IS NOT NULL THEN %(rate)s::int END,
        CASE WHEN rate_key IS NOT NULL THEN %(period_seconds)s::int END, %(traceparent)s::text
    FROM call ORDER BY unique_key
    ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (
        (status = 'READY' AND unique_while IN ('q', 'a')) OR (status = 'PROCESSING' AND unique_while = 'a'))
    DO NOTHING
    RETURNING id, created_at
)
SELECT call.place, inserted.id, inserted.created_at FROM call JOIN inserted ON inserted.id = call.id
"""

# A task that a worker has claimed meanwhile keeps what it runs with. So does one that has saved its state, which
# belongs to its arguments.
REPLACE = """
WITH call AS (
    SELECT place, call -> 0 AS args, call -> 1 AS kwargs, call ->> 3 AS unique_key
    FROM jsonb_array_elements(%(calls)s::jsonb) WITH ORDINALITY AS calls (call, place)
), waiting AS MATERIALIZED (
    SELECT task.id, call.place, call.args, call.kwargs
    FROM call JOIN tasks_task AS task ON task.unique_key = call.unique_key
    WHERE task.status = 'READY' AND task.unique_while IN ('q', 'a')
      AND NOT EXISTS (SELECT FROM tasks_progress WHERE tasks_progress.task_id = task.id AND state IS NOT NULL)
    ORDER BY call.unique_key FOR NO KEY UPDATE OF task
)
UPDATE tasks_task AS task
SET args = waiting.args, kwargs = waiting.kwargs, priority = %(priority)s::smallint, version = task.version + 1,
    run_after = coalesce(%(run_after)s::timestamptz, statement_timestamp()), traceparent = %(traceparent)s::text
FROM waiting WHERE task.id = waiting.id
RETURNING waiting.place, task.id, task.created_at
"""

HOLDERS = """
SELECT call.place, task.id, task.created_at
FROM jsonb_array_elements(%(calls)s::jsonb) WITH ORDINALITY AS call (call, place)
JOIN tasks_task AS task ON task.unique_key = call.call ->> 3
WHERE (task.status = 'READY' AND task.unique_while IN ('q', 'a'))
   OR (task.status = 'PROCESSING' AND task.unique_while = 'a')
"""

Entry = tuple[Call, Keys]


def insert(
    task: PostgresTask,
    columns: Mapping[str, Any],
    entries: Sequence[Entry],
    connection: Connection = default_connection,
) -> list[Inserted]:
    """Write a task for each call whose unique key is free; returns for each call its task.

    Of several calls with one key the first writes, and the last if duplicates replace. Raises KeyBusy if another
    transaction is taking or leaving a key, and does not end within `lock_timeout`.
    """
    replaces = task.on_duplicate == "replace"
    wanted: dict[str | int, Entry] = {}
    for place, entry in enumerate(entries):
        name = entry[1].unique or place
        if replaces or name not in wanted:
            wanted[name] = entry
    rate, period_seconds = rate_of(task.rate_limit or "") or (None, None)
    params = {
        **columns,
        "rate": rate,
        "period_seconds": period_seconds,
        "unique_while": task.unique_while[0],
        "concurrency_limit": task.concurrency_limit,
    }
    found: dict[str | int, Inserted] = {}
    for _ in range(ROUNDS):
        missing = {name: entry for name, entry in wanted.items() if name not in found}
        if not missing:
            break
        found |= _one_round(connection, params, missing, replaces)
    else:
        raise KeyBusy(f"The {_keys(missing)} changed hands {ROUNDS} times while its task was looked up: enqueue again.")
    return [found.get(place) or _next(found, entry[1].unique) for place, entry in enumerate(entries)]


def _next(found: dict[str | int, Inserted], key: str | None) -> Inserted:
    """The task of a unique key; new only for the first call."""
    row = found[key or ""]
    found[key or ""] = row._replace(is_new=False, is_replaced=False)
    return row


def _one_round(
    connection: Connection, params: Mapping[str, Any], wanted: Mapping[str | int, Entry], replaces: bool
) -> dict[str | int, Inserted]:
    found: dict[str | int, Inserted] = {}
    for statement in (INSERT, REPLACE, HOLDERS) if replaces else (INSERT, HOLDERS):
        names = [name for name in wanted if name not in found]
        if not names:
            break
        calls = ",".join(_json(*wanted[name]) for name in names)
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement, {**params, "calls": f"[{calls}]"})
                rows = cursor.fetchall()
        except (OperationalError, psycopg.OperationalError) as error:
            if not is_lock_not_available(error):
                raise
            raise KeyBusy(
                f"The {_keys(wanted)} is held up by another transaction, which did not end within lock_timeout. "
                "Enqueue again, or raise lock_timeout. While it waits, `show_locks --blocked` names that transaction."
            ) from error
        for place, task_id, created_at in rows:
            name = names[place - 1]
            found[name] = Inserted(task_id, created_at, wanted[name][0], statement is INSERT, statement is REPLACE)
    return found


def _keys(entries: Mapping[str | int, Entry]) -> str:
    """The keys in a message: one, or some of them."""
    keys = [repr(keys.unique) for _, keys in entries.values() if keys.unique]
    return f"unique key {keys[0]}" if len(keys) == 1 else f"one of the unique keys {', '.join(keys[:3])}, …"


def _json(call: Call, keys: Keys) -> str:
    return f"{call.json[:-1]},{ENCODER.encode(keys)[1:]}"
