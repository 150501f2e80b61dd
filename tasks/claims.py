"""Taking READY tasks: one function for each strategy, and the dictionary of strategies.

A claim spends the attempt, so that a task that kills its worker ends in FAILED and not in a loop. Every strategy has
two paths: rows without an ordering key by the order of the partial index, and rows with one by the heads of their keys
(see `tasks.line`); the default one asks first whether the former will do (see `tasks.plain_line`). A subquery with
LIMIT that is not materialised may be run again and claim too much (fault F3).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import django.db
import psycopg

from tasks.claimer import Claim, Claimer
from tasks.database import Connection, statement
from tasks.line import LINE
from tasks.models import ONE_PER_KEY
from tasks.plain_line import PLAIN
from tasks.sending import send_query
from tasks.shortcut import FOLLOWING, MANY, Shortcut, beginning_at, is_slow, of_narrow_line

TASK = slice(1, 1 + len(fields(Claim)))  # of a row of TAKE
STRIDES = 10  # some 2 ms each when thousands of keys wait for their time
CAREFUL_SECONDS = 10.0
CANDIDATES_SPARE = 8  # at least the number of workers that are likely to race for the same rows
ERRORS = (django.db.Error, psycopg.Error)  # of the two kinds of connection
ROW_ERROR_CLASSES = ("22", "23", "P0")  # SQLSTATE: data, integrity, raised by PL/pgSQL

# Rows are locked one by one as the outer LIMIT asks for them, so that no row is locked and then left. The inner LIMIT
# hides its number from the planner, who would sort a whole queue that its estimate calls short.
LOCKED = """, locked AS MATERIALIZED (
    SELECT due.* FROM stretch CROSS JOIN LATERAL (
        SELECT * FROM (
            SELECT task.id, task.task_path, task.attempt, task.max_attempts FROM tasks_task AS task
            WHERE task.status = 'READY' AND task.ordering_key IS NULL
              AND task.queue_name = stretch.queue_name AND task.priority = stretch.priority
              AND (task.run_after, task.id) > (stretch.since, stretch.since_id)
              AND (task.run_after, task.id) < (stretch.until, stretch.until_id)
            ORDER BY task.run_after, task.id LIMIT (SELECT %(limit)s::int) FOR NO KEY UPDATE SKIP LOCKED) AS unkeyed
        UNION ALL
        SELECT * FROM (
            SELECT task.id, task.task_path, task.attempt, task.max_attempts FROM tasks_task AS task
            WHERE task.id = stretch.head_id AND task.status = 'READY' AND task.run_after <= statement_timestamp()
            FOR NO KEY UPDATE SKIP LOCKED) AS head_row
    ) AS due LIMIT %(limit)s::int
)"""

# A task on its last attempt, or a durable one, is claimed alone: were it claimed ahead of the one in hand and the
# worker died with its supervisor, it would be FAILED though nobody had begun it. So a batch ends before the first.
CANDIDATE = """, candidate AS MATERIALIZED (
    SELECT id, place FROM (
        SELECT id, row_number() OVER () AS place, count(*) FILTER (
            WHERE attempt + 1 >= max_attempts OR task_path = ANY(%(durable)s::text[])
        ) OVER (ROWS UNBOUNDED PRECEDING) AS alone
        FROM locked
    ) AS due
    WHERE alone = 0 OR (place = 1 AND %(may_be_alone)s::boolean)
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

CLAIM_LOCKED = LINE + LOCKED + CANDIDATE + TAKE + WALK + TAKEN

# One row at least, for the last column.
TAKEN_IF_PLAIN = """
SELECT taken.*, EXISTS (SELECT FROM plain) AS is_plain FROM (SELECT) AS one LEFT JOIN taken ON true ORDER BY place
"""

CLAIM_PLAIN = PLAIN + CANDIDATE + TAKE + TAKEN_IF_PLAIN

# Candidates with the versions that were read; no lock is held between this and the compare-and-swap of each.
CANDIDATES = """
SELECT due.id, due.version, due.is_keyed, walk.next_cursor
FROM walk LEFT JOIN (
    SELECT chosen.* FROM stretch CROSS JOIN LATERAL (
        (SELECT task.id, task.version, false AS is_keyed FROM tasks_task AS task
         WHERE task.status = 'READY' AND task.ordering_key IS NULL
           AND task.queue_name = stretch.queue_name AND task.priority = stretch.priority
           AND (task.run_after, task.id) > (stretch.since, stretch.since_id)
           AND (task.run_after, task.id) < (stretch.until, stretch.until_id)
         ORDER BY task.run_after, task.id LIMIT (SELECT %(limit)s::int))
        UNION ALL
        (SELECT task.id, task.version, true FROM tasks_task AS task WHERE task.id = stretch.head_id)
    ) AS chosen LIMIT %(limit)s::int
) AS due ON true
"""

READ_CANDIDATES = LINE + WALK + CANDIDATES

# Another session's lock is a lost race too: a plain UPDATE would wait for it.
UNCHANGED = """
WITH locked AS MATERIALIZED (
    SELECT task.* FROM unnest(%(ids)s::bigint[], %(versions)s::int[]) AS seen (id, version) CROSS JOIN LATERAL (
        SELECT task.id, task.task_path, task.attempt, task.max_attempts FROM tasks_task AS task
        WHERE task.id = seen.id AND task.version = seen.version AND task.status = 'READY'
        FOR NO KEY UPDATE SKIP LOCKED) AS task
    LIMIT %(limit)s::int
)"""

FOLLOWED = """
SELECT * FROM taken ORDER BY place
"""

CLAIM_FOLLOWING = FOLLOWING + CANDIDATE + TAKE + FOLLOWED

SWAP = UNCHANGED + CANDIDATE + TAKE + FOLLOWED


class Candidate(NamedTuple):
    """A task as the optimistic claim has read it, without a lock."""

    id: int
    version: int
    is_keyed: bool


def claim_locked(connection: Connection, claimer: Claimer, limit: int) -> list[Claim]:
    """Lock up to `limit` rows, passing over those that others hold, and take them in one statement."""
    following = _follow(connection, claimer, limit)
    if following:
        return following
    began = time.monotonic()
    taken = _from_its_beginning(connection, claimer, limit)
    seconds = time.monotonic() - began
    claimer.note_taken(taken)
    was_slow, claimer.is_slow = claimer.is_slow, is_slow(taken, seconds)
    if (was_slow and claimer.is_slow) or len(taken) >= MANY:
        claimer.shortcut = beginning_at(connection, claimer.served(), seconds, is_empty=not taken)
    return taken


def claim_one(connection: Connection, claimer: Claimer, limit: int) -> list[Claim]:
    """One task, whatever `limit` says: the pessimistic worker holds its row through the work."""
    return claim_locked(connection, claimer, 1)


def claim_optimistic(connection: Connection, claimer: Claimer, limit: int) -> list[Claim]:
    """Read more candidates than wanted, then compare-and-swap them by their versions, one after the other.

    Source: the optimistic claim of the article on a table of tasks (reference D). Each swap is a transaction of its
    own, so no row stays locked while another is taken. It passes over candidates that are locked or have changed:
    beside a worker that locks hundreds of rows at once, a round trip for each would be all that is done. When every
    race is lost, more candidates are read.
    """
    wanted = 2 * limit + CANDIDATES_SPARE
    while True:
        candidates = [Candidate(*row[:3]) for row in _walk(connection, READ_CANDIDATES, claimer, wanted)]
        taken = _swap_each(connection, claimer, candidates, limit)
        if taken or len(candidates) < wanted:
            return taken
        wanted *= 4


def _from_its_beginning(connection: Connection, claimer: Claimer, limit: int) -> list[Claim]:
    if claimer.expects_plain_line:
        with connection.cursor() as cursor:  # no savepoint: it meets no key, so there is no error to go on after
            cursor.execute(CLAIM_PLAIN, claimer.params(limit))
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
        cursor.execute(CLAIM_FOLLOWING, claimer.following_params(shortcut, limit, is_ahead=False))
        return _followed(claimer, shortcut, cursor.fetchall())


def send(connection: psycopg.Connection, claimer: Claimer, limit: int) -> Callable[[], list[Claim]] | None:
    """Send a claim of what stands behind the last task, and go on; call what it gives back to read the answer.

    Other tasks are in hand meanwhile, so none is taken that has to be claimed alone. None: there is no shortcut, and
    nothing was sent. Until the answer is read connection and claimer take nothing else. The reading raises
    psycopg.Error.
    """
    shortcut, claimer.shortcut = claimer.shortcut, None
    if shortcut is None or not shortcut.is_open:
        return None
    read = send_query(connection, CLAIM_FOLLOWING, claimer.following_params(shortcut, limit, is_ahead=True))
    return lambda: _followed(claimer, shortcut, read())


def _followed(claimer: Claimer, shortcut: Shortcut, rows: list[tuple[Any, ...]]) -> list[Claim]:
    taken = _claims(rows)
    place = claimer.note_taken(taken)
    if place:
        claimer.is_from_start = False
        claimer.shortcut = shortcut.behind(place)
    return taken


def _claims(rows: list[tuple[Any, ...]]) -> list[Claim]:
    """The rows of CLAIM_LOCKED or CLAIM_FOLLOWING, which begin with those of TAKE."""
    return [Claim(*row[TASK]) for row in rows]


def _swap_each(connection: Connection, claimer: Claimer, rest: list[Candidate], limit: int) -> list[Claim]:
    taken: list[Claim] = []
    while rest and len(taken) < limit and not (taken and claimer.holds_alone(taken[-1])):
        tried = rest[:1] if claimer.is_careful else rest
        try:
            claim = _swap(connection, claimer, tried, may_be_alone=not taken)
        except ERRORS as error:
            if _is_key_taken(error):
                claimer.lost_races += 1
                rest = [candidate for candidate in rest if not candidate.is_keyed]
            elif claimer.is_careful and _is_of_a_row(error):
                rest = rest[1:]
            else:
                raise
            continue
        if claim is None and claimer.is_careful:
            rest = rest[1:]
            continue
        if claim is None:
            claimer.lost_races += 0 if taken else len(rest)
            break
        passed_over = [candidate.id for candidate in rest].index(claim.id)
        claimer.lost_races += passed_over
        taken.append(claim)
        rest = rest[passed_over + 1 :]
    return taken


def _swap(connection: Connection, claimer: Claimer, candidates: list[Candidate], *, may_be_alone: bool) -> Claim | None:
    """Take the first that is free and as it was read; None when none is, or when it has to be claimed alone."""
    seen = {"ids": [each.id for each in candidates], "versions": [each.version for each in candidates]}
    with statement(connection), connection.cursor() as cursor:
        cursor.execute(SWAP, {**claimer.params(1), **seen, "may_be_alone": may_be_alone})
        taken = _claims(cursor.fetchall())
    return taken[0] if taken else None


def _is_key_taken(error: Exception) -> bool:
    cause = _cause(error)
    return cause is not None and cause.diag.constraint_name == ONE_PER_KEY


def _is_of_a_row(error: Exception) -> bool:
    """True for what a constraint, a trigger or a type says to one row, and not of the session or of a lock."""
    cause = _cause(error)
    return cause is not None and (cause.sqlstate or "")[:2] in ROW_ERROR_CLASSES


def _cause(error: Exception) -> psycopg.Error | None:
    found = error if isinstance(error, psycopg.Error) else error.__cause__
    return found if isinstance(found, psycopg.Error) else None


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
    without keyed tasks, so that one hot key cannot keep it from the rest. When a constraint or a trigger refuses a row,
    the error is raised, and for some seconds rows are claimed one by one, around those that are refused.
    """
    chosen = STRATEGIES["optimistic" if claimer.is_careful else strategy]
    limit = min(limit, chosen.max_batch, STRATEGIES[strategy].max_batch)
    if limit <= 0:
        return []
    for attempt in (claimer, claimer, replace(claimer, keys=0)):
        try:
            return chosen.claim(connection, attempt, limit)
        except ERRORS as error:
            if not _is_key_taken(error):
                if _is_of_a_row(error):
                    claimer.careful_until = time.monotonic() + CAREFUL_SECONDS
                raise
            claimer.lost_races += 1
            claimer.is_from_start = False
    return []
