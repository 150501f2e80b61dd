"""Taking READY tasks: one function for each strategy, and the dictionary of strategies.

A claim spends the attempt, so that a task that kills its worker ends in FAILED and not in a loop. Every strategy has
two paths: rows without an ordering key by the order of the partial index, and rows with one by the heads of their keys.
Why the statements look as they do, with figures: `queue_name = ANY(…)` sorts the whole table (27 ms against 0.3 ms with
100,000 ready rows), so queues and priorities are walked by a loose scan; a subquery with LIMIT that is not materialised
may be run again and claim too much (fault F3).
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from django.db import IntegrityError

from tasks.database import Connection, transaction
from tasks.models import ONE_PER_KEY

KEYS_PER_CLAIM = 300
CANDIDATES_SPARE = 8  # at least the number of workers that are likely to race for the same rows
INTEGRITY_ERRORS = (IntegrityError, psycopg.IntegrityError)

# Which (queue, priority) pairs have READY rows: one step of the index for each. `ord` keeps the order in which the
# worker names its queues; when it serves every queue, chance decides, so that no queue starves another.
SOURCES = """
WITH RECURSIVE every_queue (name) AS (
    (SELECT queue_name FROM tasks_task AS task
     WHERE task.status = 'READY' AND task.ordering_key IS NULL AND %(queues)s::text[] IS NULL
     ORDER BY task.queue_name LIMIT 1)
    UNION ALL
    SELECT (SELECT task.queue_name FROM tasks_task AS task
            WHERE task.status = 'READY' AND task.ordering_key IS NULL AND task.queue_name > every_queue.name
            ORDER BY task.queue_name LIMIT 1)
    FROM every_queue WHERE every_queue.name IS NOT NULL
), queue (name, ord) AS (
    SELECT served.name, served.ord
    FROM (SELECT name, ord::float8 FROM unnest(%(queues)s::text[]) WITH ORDINALITY AS named (name, ord)
          UNION ALL
          SELECT name, random() FROM every_queue WHERE name IS NOT NULL) AS served (name, ord)
    WHERE NOT EXISTS (SELECT FROM tasks_queue WHERE tasks_queue.name = served.name AND tasks_queue.paused)
), pair AS (
    (SELECT queue.name AS queue_name, first.priority, queue.ord FROM queue, LATERAL (
        SELECT task.priority FROM tasks_task AS task
        WHERE task.status = 'READY' AND task.ordering_key IS NULL AND task.queue_name = queue.name
        ORDER BY task.priority DESC LIMIT 1) AS first)
    UNION ALL
    SELECT pair.queue_name, next.priority, pair.ord FROM pair, LATERAL (
        SELECT task.priority FROM tasks_task AS task
        WHERE task.status = 'READY' AND task.ordering_key IS NULL AND task.queue_name = pair.queue_name
          AND task.priority < pair.priority
        ORDER BY task.priority DESC LIMIT 1) AS next
)"""

# The earliest unfinished row of each key, from a cursor that wraps, some hundreds of keys a claim. A key is held by
# its PROCESSING row and by a row that waits for its retry alike.
HEADS = """, head AS (
    (SELECT task.ordering_key, task.id, task.status, task.queue_name, task.priority, task.run_after, 1 AS number
     FROM tasks_task AS task
     WHERE task.ordering_key IS NOT NULL AND task.status IN ('READY', 'PROCESSING')
       AND task.ordering_key > %(cursor)s::text AND %(keys)s::int > 0
     ORDER BY task.ordering_key, task.id LIMIT 1)
    UNION ALL
    SELECT next.*, head.number + 1 FROM head, LATERAL (
        SELECT task.ordering_key, task.id, task.status, task.queue_name, task.priority, task.run_after
        FROM tasks_task AS task
        WHERE task.ordering_key IS NOT NULL AND task.status IN ('READY', 'PROCESSING')
          AND task.ordering_key > head.ordering_key
        ORDER BY task.ordering_key, task.id LIMIT 1) AS next
    WHERE head.number < %(keys)s::int
), keyed AS MATERIALIZED (
    SELECT head.id, head.queue_name, head.priority, head.run_after, coalesce(named.ord, random()) AS ord
    FROM head LEFT JOIN unnest(%(queues)s::text[]) WITH ORDINALITY AS named (name, ord) ON named.name = head.queue_name
    WHERE head.status = 'READY' AND head.run_after <= statement_timestamp()
      AND (%(queues)s::text[] IS NULL OR named.name IS NOT NULL)
      AND NOT EXISTS (SELECT FROM tasks_queue WHERE tasks_queue.name = head.queue_name AND tasks_queue.paused)
), source AS MATERIALIZED (
    SELECT queue_name, priority, ord, false AS is_keyed FROM pair
    UNION ALL
    SELECT queue_name, priority, min(ord), true FROM keyed GROUP BY queue_name, priority
    ORDER BY priority DESC, ord, is_keyed
)"""

# Rows are locked one by one as the outer LIMIT asks for them, so that no row is locked and then left.
LOCKED = """, candidate AS MATERIALIZED (
    SELECT id, row_number() OVER () AS place FROM (
        SELECT due.id FROM source CROSS JOIN LATERAL (
            SELECT id FROM (
                SELECT task.id FROM tasks_task AS task
                WHERE NOT source.is_keyed AND task.status = 'READY' AND task.ordering_key IS NULL
                  AND task.queue_name = source.queue_name AND task.priority = source.priority
                  AND task.run_after <= statement_timestamp()
                ORDER BY task.run_after, task.id LIMIT %(limit)s::int FOR NO KEY UPDATE SKIP LOCKED) AS unkeyed
            UNION ALL
            SELECT id FROM (
                SELECT task.id FROM keyed JOIN tasks_task AS task ON task.id = keyed.id
                WHERE source.is_keyed AND keyed.queue_name = source.queue_name AND keyed.priority = source.priority
                  AND task.status = 'READY' AND task.run_after <= statement_timestamp()
                ORDER BY keyed.run_after, keyed.id LIMIT %(limit)s::int
                FOR NO KEY UPDATE OF task SKIP LOCKED) AS head_row
        ) AS due LIMIT %(limit)s::int
    ) AS chosen
)"""

TAKE = """, taken AS (
    UPDATE tasks_task AS task SET
        status = 'PROCESSING', version = task.version + 1, attempt = task.attempt + 1,
        claimed_by = %(worker_id)s::text, started_at = statement_timestamp(), cancel_requested_at = NULL
    FROM candidate WHERE task.id = candidate.id
    RETURNING candidate.place, task.id, task.task_path, task.queue_name, task.priority, task.args::text,
        task.kwargs::text, task.version, task.attempt, task.max_attempts, task.ordering_key, task.created_at,
        task.run_after, task.started_at
)
SELECT taken.*, walk.next_cursor
FROM (SELECT CASE count(*) WHEN %(keys)s::int THEN max(ordering_key) ELSE '' END AS next_cursor FROM head) AS walk
LEFT JOIN taken ON true
ORDER BY taken.place
"""

CLAIM_LOCKED = SOURCES + HEADS + LOCKED + TAKE

# Candidates with the versions that were read; no lock is held between this and the compare-and-swap of each.
CANDIDATES = """
SELECT due.id, due.version, walk.next_cursor
FROM (SELECT CASE count(*) WHEN %(keys)s::int THEN max(ordering_key) ELSE '' END AS next_cursor FROM head) AS walk
LEFT JOIN (
    SELECT chosen.* FROM source CROSS JOIN LATERAL (
        (SELECT task.id, task.version FROM tasks_task AS task
         WHERE NOT source.is_keyed AND task.status = 'READY' AND task.ordering_key IS NULL
           AND task.queue_name = source.queue_name AND task.priority = source.priority
           AND task.run_after <= statement_timestamp()
         ORDER BY task.run_after, task.id LIMIT %(limit)s::int)
        UNION ALL
        (SELECT task.id, task.version FROM keyed JOIN tasks_task AS task ON task.id = keyed.id
         WHERE source.is_keyed AND keyed.queue_name = source.queue_name AND keyed.priority = source.priority
         ORDER BY keyed.run_after, keyed.id LIMIT %(limit)s::int)
    ) AS chosen LIMIT %(limit)s::int
) AS due ON true
"""

READ_CANDIDATES = SOURCES + HEADS + CANDIDATES

SWAP = """
UPDATE tasks_task AS task SET
    status = 'PROCESSING', version = task.version + 1, attempt = task.attempt + 1,
    claimed_by = %(worker_id)s::text, started_at = statement_timestamp(), cancel_requested_at = NULL
WHERE task.id = %(id)s::bigint AND task.version = %(version)s::int AND task.status = 'READY'
RETURNING task.id, task.task_path, task.queue_name, task.priority, task.args::text, task.kwargs::text, task.version,
    task.attempt, task.max_attempts, task.ordering_key, task.created_at, task.run_after, task.started_at
"""


@dataclass(slots=True)
class Claim:
    """One claimed task, as its worker holds it. `args` and `kwargs` are JSON text until the task runs."""

    id: int
    task_path: str
    queue_name: str
    priority: int
    args: str
    kwargs: str
    version: int
    attempt: int
    max_attempts: int
    ordering_key: str | None
    created_at: datetime
    run_after: datetime
    started_at: datetime

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """The decoded positional and keyword arguments."""
        return json.loads(self.args), json.loads(self.kwargs)


@dataclass
class Claimer:
    """Who claims, from which queues (None: every queue), and where the walk over the ordering keys stands."""

    worker_id: str
    queues: list[str] | None = None
    cursor: str = ""
    keys: int = KEYS_PER_CLAIM
    lost_races: int = 0

    def params(self, limit: int) -> dict[str, Any]:
        return {
            "worker_id": self.worker_id,
            "queues": self.queues,
            "cursor": self.cursor,
            "keys": self.keys,
            "limit": limit,
        }


def claim_locked(connection: Connection, claimer: Claimer, limit: int) -> list[Claim]:
    """Lock up to `limit` rows, passing over those that others hold, and take them in one statement."""
    rows = _walk(connection, CLAIM_LOCKED, claimer, limit)
    return [Claim(*row[1:-1]) for row in rows]


def claim_one(connection: Connection, claimer: Claimer, limit: int) -> list[Claim]:
    """One task, whatever `limit` says: the pessimistic worker holds its row through the work."""
    return claim_locked(connection, claimer, 1)


def claim_optimistic(connection: Connection, claimer: Claimer, limit: int) -> list[Claim]:
    """Read more candidates than wanted, then compare-and-swap each by its version; a lost race means the next one.

    Source: the optimistic claim of the article on a table of tasks (reference D). No row stays locked in between.
    """
    candidates = _walk(connection, READ_CANDIDATES, claimer, 2 * limit + CANDIDATES_SPARE)
    claims: list[Claim] = []
    for task_id, version, _ in candidates:
        claim = _swap(connection, claimer, task_id, version)
        if claim is None:
            claimer.lost_races += 1
            continue
        claims.append(claim)
        if len(claims) == limit:
            break
    return claims


def _walk(connection: Connection, sql: str, claimer: Claimer, limit: int) -> list[tuple[Any, ...]]:
    """Run a claim from the claimer's cursor; when that part of the keys has nothing, once more from the start."""
    for _ in range(2):
        began_at = claimer.cursor
        with connection.cursor() as cursor:
            cursor.execute(sql, claimer.params(limit))
            rows = cursor.fetchall()
        claimer.cursor = rows[0][-1]
        if rows[0][0] is not None:
            return rows
        if not began_at:
            break
    return []


def _swap(connection: Connection, claimer: Claimer, task_id: int, version: int) -> Claim | None:
    params = {"worker_id": claimer.worker_id, "id": task_id, "version": version}
    try:
        with transaction(connection), connection.cursor() as cursor:
            cursor.execute(SWAP, params)
            row = cursor.fetchone()
    except INTEGRITY_ERRORS as error:
        _reraise_unless_key_is_taken(error)
        return None
    return Claim(*row) if row else None


def _reraise_unless_key_is_taken(error: Exception) -> None:
    cause = error if isinstance(error, psycopg.Error) else error.__cause__
    if not isinstance(cause, psycopg.Error) or cause.diag.constraint_name != ONE_PER_KEY:
        raise error


@dataclass(frozen=True)
class Strategy:
    """How a worker claims: the function, the largest batch, whether the row stays locked through the work, and whether
    the flush of the last batch may share the claim's transaction.
    """

    claim: Callable[[Connection, Claimer, int], list[Claim]]
    max_batch: int
    holds_row: bool = False
    joins_flush: bool = False


STRATEGIES = {
    "skip_locked": Strategy(claim_locked, max_batch=500, joins_flush=True),
    "optimistic": Strategy(claim_optimistic, max_batch=50),
    "pessimistic": Strategy(claim_one, max_batch=1, holds_row=True),
}
DEFAULT_STRATEGY = "skip_locked"


def claim(connection: Connection, claimer: Claimer, limit: int, strategy: str = DEFAULT_STRATEGY) -> list[Claim]:
    """Claim up to `limit` due tasks in the order priority, run_after, id; fewer or none when there are no more.

    Two claims may meet on one ordering key. The unique index lets one through; the other tries again, the last time
    without keyed tasks, so that one hot key cannot keep it from the rest.
    """
    chosen = STRATEGIES[strategy]
    limit = min(limit, chosen.max_batch)
    for keys in (KEYS_PER_CLAIM, KEYS_PER_CLAIM, 0):
        claimer.keys = keys
        try:
            with transaction(connection):
                return chosen.claim(connection, claimer, limit)
        except INTEGRITY_ERRORS as error:
            _reraise_unless_key_is_taken(error)
            claimer.lost_races += 1
    return []
