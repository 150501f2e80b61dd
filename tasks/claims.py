"""Taking READY tasks: one function for each strategy, and the dictionary of strategies.

A claim spends the attempt, so that a task that kills its worker ends in FAILED and not in a loop. Every strategy has
two paths: rows without an ordering key by the order of the partial index, and rows with one by the heads of their keys
(see `tasks.line`); the default one asks first whether the former will do (see `tasks.plain_line`). A subquery with
LIMIT that is not materialised may be run again and claim too much (fault F3).
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any

import psycopg
from django.db import IntegrityError

from tasks.claimer import Claim, Claimer
from tasks.database import Connection, statement
from tasks.line import LINE
from tasks.models import ONE_PER_KEY
from tasks.plain_line import PLAIN
from tasks.sending import send_query
from tasks.shortcut import FOLLOWING, MANY, Shortcut, beginning_behind, is_slow, of_narrow_line

TASK = slice(1, 1 + len(fields(Claim)))  # of a row of TAKE
STRIDES = 10  # some 2 ms each when thousands of keys wait for their time
CANDIDATES_SPARE = 8  # at least the number of workers that are likely to race for the same rows
INTEGRITY_ERRORS = (IntegrityError, psycopg.IntegrityError)

# Rows are locked one by one as the outer LIMIT asks for them, so that no row is locked and then left. The inner LIMIT
# hides its number from the planner, who would sort a whole queue that its estimate calls short.
LOCKED = """, candidate AS MATERIALIZED (
    SELECT id, row_number() OVER () AS place FROM (
        SELECT due.id FROM stretch CROSS JOIN LATERAL (
            SELECT id FROM (
                SELECT task.id FROM tasks_task AS task
                WHERE task.status = 'READY' AND task.ordering_key IS NULL
                  AND task.queue_name = stretch.queue_name AND task.priority = stretch.priority
                  AND (task.run_after, task.id) > (stretch.since, stretch.since_id)
                  AND (task.run_after, task.id) < (stretch.until, stretch.until_id)
                ORDER BY task.run_after, task.id LIMIT (SELECT %(limit)s::int) FOR NO KEY UPDATE SKIP LOCKED) AS unkeyed
            UNION ALL
            SELECT id FROM (
                SELECT task.id FROM tasks_task AS task
                WHERE task.id = stretch.head_id AND task.status = 'READY' AND task.run_after <= statement_timestamp()
                FOR NO KEY UPDATE SKIP LOCKED) AS head_row
        ) AS due LIMIT %(limit)s::int
    ) AS chosen
)"""

TAKE = """, taken AS (
    UPDATE tasks_task AS task SET
        status = 'PROCESSING', version = task.version + 1, attempt = task.attempt + 1,
        claimed_by = %(worker_id)s::text, started_at = statement_timestamp(), cancel_requested_at = NULL
    FROM candidate WHERE task.id = candidate.id
    RETURNING candidate.place, task.id, task.task_path, task.queue_name, task.priority, task.args::text,
        task.kwargs::text, task.version, task.attempt, task.max_attempts, task.ordering_key,
        task.created_at::text, task.run_after::text, task.started_at::text
)"""

# Where the next stride over the keys begins: behind the last of this one, at the first key, or nowhere: none is due.
WALK = """, walk AS (
    SELECT CASE WHEN count(*) = %(keys)s::int THEN max(ordering_key) WHEN EXISTS (SELECT FROM keyed) THEN '' END
        AS next_cursor
    FROM head
)"""

# One row at least, so that the cursor comes back when nothing was taken. `is_narrow`: nothing was due beside the tasks
# of one queue and priority, or the head of one key (and then no key rests).
TAKEN = """
SELECT taken.*, (SELECT count(*) = 1 FROM mark) AS is_narrow, walk.next_cursor
FROM walk LEFT JOIN taken ON true ORDER BY taken.place
"""

CLAIM_LOCKED = LINE + LOCKED + TAKE + WALK + TAKEN

# One row at least, for the last column.
TAKEN_IF_PLAIN = """
SELECT taken.*, EXISTS (SELECT FROM plain) AS is_plain FROM (SELECT) AS one LEFT JOIN taken ON true ORDER BY place
"""

CLAIM_PLAIN = PLAIN + TAKE + TAKEN_IF_PLAIN

# Candidates with the versions that were read; no lock is held between this and the compare-and-swap of each.
CANDIDATES = """
SELECT due.id, due.version, walk.next_cursor
FROM walk LEFT JOIN (
    SELECT chosen.* FROM stretch CROSS JOIN LATERAL (
        (SELECT task.id, task.version FROM tasks_task AS task
         WHERE task.status = 'READY' AND task.ordering_key IS NULL
           AND task.queue_name = stretch.queue_name AND task.priority = stretch.priority
           AND (task.run_after, task.id) > (stretch.since, stretch.since_id)
           AND (task.run_after, task.id) < (stretch.until, stretch.until_id)
         ORDER BY task.run_after, task.id LIMIT (SELECT %(limit)s::int))
        UNION ALL
        (SELECT task.id, task.version FROM tasks_task AS task WHERE task.id = stretch.head_id)
    ) AS chosen LIMIT %(limit)s::int
) AS due ON true
"""

READ_CANDIDATES = LINE + WALK + CANDIDATES

# Another session's lock is a lost race too: a plain UPDATE would wait for it.
FREE = """
WITH candidate AS MATERIALIZED (
    SELECT id, 1 AS place FROM tasks_task
    WHERE id = %(id)s::bigint AND version = %(version)s::int AND status = 'READY'
    FOR NO KEY UPDATE SKIP LOCKED
)"""

SWAPPED = """
SELECT * FROM taken
"""

FOLLOWED = """
SELECT * FROM taken ORDER BY place
"""

CLAIM_FOLLOWING = FOLLOWING + TAKE + FOLLOWED

SWAP = FREE + TAKE + SWAPPED


def claim_locked(connection: Connection, claimer: Claimer, limit: int) -> list[Claim]:
    """Lock up to `limit` rows, passing over those that others hold, and take them in one statement."""
    following = _follow(connection, claimer, limit)
    if following:
        return following
    began = time.monotonic()
    taken = _from_its_beginning(connection, claimer, limit)
    seconds = time.monotonic() - began
    was_slow, claimer.is_slow = claimer.is_slow, is_slow(taken, seconds)
    if (was_slow and claimer.is_slow) or len(taken) >= MANY:
        claimer.shortcut = beginning_behind(connection, taken, seconds)
    return taken


def claim_one(connection: Connection, claimer: Claimer, limit: int) -> list[Claim]:
    """One task, whatever `limit` says: the pessimistic worker holds its row through the work."""
    return claim_locked(connection, claimer, 1)


def claim_optimistic(connection: Connection, claimer: Claimer, limit: int) -> list[Claim]:
    """Read more candidates than wanted, then compare-and-swap each by its version; a lost race means the next one.

    Source: the optimistic claim of the article on a table of tasks (reference D). Each swap is a transaction of its
    own, so no row stays locked while another is taken. When every race is lost, more candidates are read.
    """
    wanted = 2 * limit + CANDIDATES_SPARE
    while True:
        candidates = _walk(connection, READ_CANDIDATES, claimer, wanted)
        claims = list(islice(_swap_each(connection, claimer, candidates), limit))
        if claims or len(candidates) < wanted:
            return claims
        wanted *= 4


def _from_its_beginning(connection: Connection, claimer: Claimer, limit: int) -> list[Claim]:
    if claimer.expects_plain_line:
        with connection.cursor() as cursor:  # no savepoint: it meets no key, so there is no error to go on after
            cursor.execute(CLAIM_PLAIN, {"worker_id": claimer.worker_id, "queues": claimer.queues, "limit": limit})
            rows: list[tuple[Any, ...]] = cursor.fetchall()
        is_plain, is_found = rows[0][-1], rows[0][0] is not None
        claimer.note_line(is_plain=is_plain, is_found=is_found)
        if is_plain:
            return _claims(rows) if is_found else []
    rows = _walk(connection, CLAIM_LOCKED, claimer, limit)
    taken = _claims(rows)
    if taken and rows[0][-2]:
        claimer.shortcut = of_narrow_line(taken[0], claimer.keys_rest_until)
    return taken


def _walk(connection: Connection, sql: str, claimer: Claimer, limit: int) -> list[tuple[Any, ...]]:
    """Run a claim from the claimer's cursor, stride by stride until it finds something or has been round all keys."""
    for _ in range(STRIDES):
        params = claimer.params(limit)
        with statement(connection), connection.cursor() as cursor:
            cursor.execute(sql, params)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
        claimer.note_walk(params["keys"], rows[0][-1])
        if rows[0][0] is not None:
            claimer.is_from_start = False
            return rows
        claimer.keys_rest_until = 0.0  # nothing else is due
        if claimer.has_been_round:
            break
    return []


def _follow(connection: Connection, claimer: Claimer, limit: int) -> list[Claim]:
    """What stands behind the last task, while the way from the beginning of the line is too long."""
    shortcut, claimer.shortcut = claimer.shortcut, None
    if shortcut is None or not shortcut.is_open:
        return []
    with statement(connection), connection.cursor() as cursor:
        cursor.execute(CLAIM_FOLLOWING, shortcut.params(claimer.worker_id, limit))
        return _followed(claimer, shortcut, cursor.fetchall(), limit)


def send(connection: psycopg.Connection, claimer: Claimer, limit: int) -> Callable[[], list[Claim]] | None:
    """Send a claim of what stands behind the last task, and go on; call what it gives back to read the answer.

    None: there is no shortcut, and nothing was sent. Until the answer is read connection and claimer take nothing
    else. The reading raises psycopg.Error.
    """
    shortcut, claimer.shortcut = claimer.shortcut, None
    if shortcut is None or not shortcut.is_open:
        return None
    read = send_query(connection, CLAIM_FOLLOWING, shortcut.params(claimer.worker_id, limit))
    return lambda: _followed(claimer, shortcut, read(), limit)


def _followed(claimer: Claimer, shortcut: Shortcut, rows: list[tuple[Any, ...]], limit: int) -> list[Claim]:
    taken = _claims(rows)
    if taken:
        claimer.is_from_start = False
    if len(taken) == limit:
        claimer.shortcut = shortcut.behind(taken)
    return taken


def _claims(rows: list[tuple[Any, ...]]) -> list[Claim]:
    """The rows of CLAIM_PLAIN, CLAIM_LOCKED or CLAIM_FOLLOWING, which begin with those of TAKE."""
    return [Claim(*row[TASK]) for row in rows]


def _swap_each(connection: Connection, claimer: Claimer, candidates: list[tuple[Any, ...]]) -> Iterator[Claim]:
    for task_id, version, _ in candidates:
        claim = _swap(connection, claimer, task_id, version)
        if claim:
            yield claim
        else:
            claimer.lost_races += 1


def _swap(connection: Connection, claimer: Claimer, task_id: int, version: int) -> Claim | None:
    params = {"worker_id": claimer.worker_id, "id": task_id, "version": version}
    try:
        with statement(connection), connection.cursor() as cursor:
            cursor.execute(SWAP, params)
            row = cursor.fetchone()
    except INTEGRITY_ERRORS as error:
        _reraise_unless_key_is_taken(error)
        return None
    return Claim(*row[1:]) if row else None


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
    "skip_locked": Strategy(claim_locked, max_batch=2_000, joins_flush=True),
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
    if limit <= 0:
        return []
    for attempt in (claimer, claimer, replace(claimer, keys=0)):
        try:
            return chosen.claim(connection, attempt, limit)
        except INTEGRITY_ERRORS as error:
            _reraise_unless_key_is_taken(error)
            claimer.lost_races += 1
            claimer.is_from_start = False
    return []
