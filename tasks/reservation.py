"""Claims that write nothing as long as all goes well: rows locked in an open transaction, and a note of which they are.

Who drains a long queue of tasks that end within microseconds pays for two new versions of each row: the claim's and
the completion's. Here the first is left out. A worker locks its batch, notes the ids in `tasks_reservation`, asks
whether it still holds the locks, and runs the batch; the completions, the attempts they have spent and the end of the
note are one commit. What keeps others away is the note: locks only spare them the look at it, and may be lost at any
time. So:

- Every claim asks for notes after it has locked its rows, with a snapshot of that moment (`rowlock_reserved`). It
  cannot have missed one: after the commit of its note the worker asks whether its locks are held still.
- Whatever does not go well makes ordinary claims of what has begun (`settle`): a task that fails or lasts, a lost
  session, a dead worker. From there on they are PROCESSING rows like all others.

A note is durable before the first task begins, so a crash of the server repeats no more than it does with other claims.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tasks.database import Connection, fetch, numbers, transaction
from tasks.line import LINE

if TYPE_CHECKING:
    from tasks.claimer import Claim

# A note has a bit for each id between its first and its last; beyond this batches are claimed as any other.
LONGEST_SPAN = 32_768

# `version` and `attempt` are those that a claim would have written. NULL stands for what most tasks have: no arguments,
# and due since they were created. Beside a worker of an older version, which does not ask for notes, nothing is
# reserved.
COLUMNS = """
SELECT task.id, task.task_path, task.queue_name, task.priority,
    nullif(task.args, '[]')::text, nullif(task.kwargs, '{}')::text,
    task.version + 1, task.attempt + 1, task.max_attempts,
    nullif(task.created_at, task.run_after)::text, task.run_after::text
"""
BEHIND = """
FROM tasks_task AS task
WHERE task.status = 'READY' AND task.ordering_key IS NULL
  AND task.queue_name = %(queue_name)s::text AND task.priority = %(priority)s::smallint
  AND (task.run_after, task.id) > (%(run_after)s::timestamptz, %(id)s::bigint)
  AND task.run_after <= statement_timestamp()
  AND NOT EXISTS (SELECT FROM tasks_queue WHERE name = %(queue_name)s::text AND paused)
  AND NOT EXISTS (SELECT FROM tasks_worker WHERE stopped_at IS NULL AND NOT heeds_reservations)
ORDER BY task.run_after, task.id LIMIT (SELECT %(limit)s::int) FOR NO KEY UPDATE SKIP LOCKED
"""
# From the beginning of the line, where nothing is due beside the tasks of one queue and priority; else nothing. There
# may be tasks with keys that are not due: so many keys are looked at, and where there are more nobody knows.
FIRST = """
FROM (
    SELECT queue_name, priority FROM mark
    WHERE head_id IS NULL AND (SELECT count(*) FROM mark) = 1 AND (SELECT count(*) FROM head) < %(keys)s::int) AS narrow
CROSS JOIN LATERAL (
    SELECT * FROM tasks_task AS task
    WHERE task.status = 'READY' AND task.ordering_key IS NULL
      AND task.queue_name = narrow.queue_name AND task.priority = narrow.priority
      AND task.run_after <= statement_timestamp()
    ORDER BY task.run_after, task.id LIMIT (SELECT %(limit)s::int) FOR NO KEY UPDATE SKIP LOCKED) AS task
WHERE NOT EXISTS (SELECT FROM tasks_worker WHERE stopped_at IS NULL AND NOT heeds_reservations)
ORDER BY task.run_after, task.id
"""
RESERVE_FOLLOWING = COLUMNS + BEHIND
RESERVE_FIRST = LINE + COLUMNS + FIRST
# When a batch was reserved, and the transaction that holds it.
HOLD = "SELECT statement_timestamp()::text AS reserved_at, pg_current_xact_id()::text AS transaction"

# `elsewhere`: which of them somebody else has noted.
NOTE = """
INSERT INTO tasks_reservation AS noted (worker_id, slot, queue_name, first_id, members, reserved_at)
VALUES (%(worker_id)s::text, %(slot)s::smallint, %(queue_name)s::text, %(first_id)s::bigint, %(members)s::bytea,
    %(reserved_at)s::timestamptz)
ON CONFLICT (worker_id, slot) DO UPDATE SET queue_name = excluded.queue_name, first_id = excluded.first_id,
    members = excluded.members, reserved_at = excluded.reserved_at
RETURNING rowlock_reserved(%(ids)s::bigint[], %(worker_id)s::text, %(slot)s::int) AS elsewhere
"""

IS_HELD = "SELECT pg_xact_status(%(transaction)s::text::xid8) = 'in progress' AS is_held"

# Under the locks of its own transaction: the attempt is spent here. The note is emptied and not deleted: a new version
# on the same page is all that a batch leaves behind.
END = """
WITH done AS (
    UPDATE tasks_task AS task SET
        status = 'COMPLETED', version = ending.version + 1, attempt = task.attempt + 1,
        finished_by = %(worker_id)s::text, return_value = ending.return_value::jsonb, cancel_requested_at = NULL,
        started_at = statement_timestamp() - ending.started_ago * interval '1 microsecond',
        finished_at = statement_timestamp() - ending.finished_ago * interval '1 microsecond'
    FROM unnest(%(ids)s::bigint[], %(versions)s::int[], %(return_values)s::text[],
                %(started_ago)s::bigint[], %(finished_ago)s::bigint[])
        AS ending (id, version, return_value, started_ago, finished_ago)
    WHERE task.id = ending.id AND task.version = ending.version - 1
    RETURNING task.queue_name, greatest(0, date_part('epoch', task.started_at - task.run_after)) AS waited,
        date_part('epoch', task.finished_at - task.started_at) AS ran
), ended AS (
    UPDATE tasks_reservation SET members = '' WHERE worker_id = %(worker_id)s::text AND slot = %(slot)s::smallint
)
SELECT queue_name, width_bucket(ran, %(bounds)s::float8[]) AS run_bucket,
    width_bucket(waited, %(bounds)s::float8[]) AS wait_bucket,
    count(*) AS completed, 1000 * sum(ran) AS run_ms, 1000 * sum(waited) AS wait_ms
FROM done GROUP BY 1, 2, 3
"""
COUNTS = """
SELECT worker_id, sum(bit_count(members))::bigint AS number FROM tasks_reservation
WHERE members <> '' GROUP BY worker_id
"""
FORGET = "DELETE FROM tasks_reservation WHERE worker_id = %(worker_id)s::text"

NOTES = """
SELECT id, worker_id, first_id, members, reserved_at FROM tasks_reservation
WHERE worker_id = ANY(%(worker_ids)s::text[])
  AND (%(reserved_at)s::timestamptz IS NULL OR reserved_at = %(reserved_at)s::timestamptz)
ORDER BY id FOR UPDATE SKIP LOCKED
"""
ARE_LEFT = """
SELECT EXISTS (
    SELECT FROM tasks_reservation WHERE worker_id = ANY(%(worker_ids)s::text[]) AND members <> ''
      AND (%(reserved_at)s::timestamptz IS NULL OR reserved_at = %(reserved_at)s::timestamptz)) AS are_left
"""
CLAIM = """
WITH free AS MATERIALIZED (
    SELECT id FROM tasks_task WHERE id = ANY(%(ids)s::bigint[]) AND status = 'READY'
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE tasks_task AS task SET
    status = 'PROCESSING', version = task.version + 1, attempt = task.attempt + 1,
    claimed_by = %(worker_id)s::text, started_at = %(reserved_at)s::timestamptz, cancel_requested_at = NULL
FROM free WHERE task.id = free.id
"""
STILL_READY = "SELECT id FROM tasks_task WHERE id = ANY(%(ids)s::bigint[]) AND status = 'READY'"
CHANGE_NOTE = "UPDATE tasks_reservation SET members = %(members)s::bytea WHERE id = %(note_id)s::bigint"
DELETE_NOTE = "DELETE FROM tasks_reservation WHERE id = %(note_id)s::bigint"


def can_note(batch: Sequence["Claim"]) -> bool:
    """Whether the ids stand close enough to each other."""
    ids = [claim.id for claim in batch]
    return max(ids) - min(ids) < LONGEST_SPAN


def noting(worker_id: str, slot: int, batch: Sequence["Claim"]) -> dict[str, Any]:
    """What NOTE takes."""
    ids = [claim.id for claim in batch]
    return {
        "worker_id": worker_id,
        "slot": slot,
        "queue_name": batch[0].queue_name,
        "first_id": min(ids),
        "members": members(ids),
        "reserved_at": batch[0].started_at,
        "ids": numbers(ids),
    }


def counts(connection: Connection) -> dict[str, int]:
    """How many tasks each worker has reserved and runs; those that have none are left out."""
    return {row["worker_id"]: row["number"] for row in fetch(connection, COUNTS)}


def settle(
    connection: Connection,
    worker_ids: Iterable[str],
    begun: Collection[int] | None = None,
    *,
    reserved_at: datetime | None = None,
) -> bool:
    """Make ordinary claims of what these workers have reserved and begun (None: all of it), and let go of the rest.

    With `reserved_at`, of that batch alone. Whether nothing is left: what is locked stays as it is, and is to be
    settled later.
    """
    which = {"worker_ids": list(worker_ids), "reserved_at": reserved_at}
    with transaction(connection):
        for noted in fetch(connection, NOTES, which):
            ids = ids_of(noted["first_id"], noted["members"])
            _settle_note(connection, noted, ids if begun is None else [id for id in ids if id in begun])
        return not fetch(connection, ARE_LEFT, which)[0]["are_left"]


def _settle_note(connection: Connection, noted: dict[str, Any], ids: list[int]) -> None:
    params = {"ids": ids, "worker_id": noted["worker_id"], "reserved_at": noted["reserved_at"], "note_id": noted["id"]}
    left: list[int] = []
    with connection.cursor() as cursor:
        if ids:
            cursor.execute(CLAIM, params)
            cursor.execute(STILL_READY, params)
            left = [row[0] for row in cursor.fetchall()]
        if left:
            cursor.execute(CHANGE_NOTE, {**params, "members": members(left, noted["first_id"])})
        else:
            cursor.execute(DELETE_NOTE, params)


def members(ids: Sequence[int], first_id: int | None = None) -> bytes:
    """A bit for each id, counted from `first_id` (None: the lowest of them).

    >>> members([7, 8, 17]).hex()
    '0304'
    >>> ids_of(7, members([7, 8, 17]))
    [7, 8, 17]
    """
    first = min(ids) if first_id is None else first_id
    bits = bytearray((max(ids) - first) // 8 + 1)
    for id in ids:
        bits[(id - first) >> 3] |= 1 << ((id - first) & 7)
    return bytes(bits)


def ids_of(first_id: int, members: bytes) -> list[int]:
    """The ids whose bits are set."""
    bits = bytes(members)  # Django's connection gives a memoryview
    return [first_id + 8 * place + bit for place, byte in enumerate(bits) for bit in range(8) if byte >> bit & 1]
