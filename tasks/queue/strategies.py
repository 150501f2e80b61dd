"""The claim that a worker calls, and its strategies by name; the optimistic one is here, the default in `shortcut`.

The optimistic strategy reads candidates without a lock, then compares and swaps each by its version. Source: the
optimistic claim of the article on a table of tasks (reference D).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import psycopg

from tasks.models import ONE_PER_KEY, ONE_PER_SLOT
from tasks.queue.claim import Claim, Claimer, claims_of, walk
from tasks.queue.set_aside import ERRORS, cause
from tasks.queue.shortcut import claim_locked
from tasks.support.database import Connection, sqlstate, statement

CAREFUL_SECONDS = 10.0
GUARDS_OF_KEYS = (ONE_PER_KEY, *ONE_PER_SLOT, "tasks_task_slot_within_limit")  # the last is of a trigger
CANDIDATES_SPARE = 8  # at least the number of workers that are likely to race for the same rows
ROW_ERROR_CLASSES = ("22", "23", "P0")  # SQLSTATE: data, integrity, raised by PL/pgSQL

# The parts up to `walk` are those of claim.CLAIM. No lock is held between this statement and the swap of a candidate.
READ_CANDIDATES = """
WITH RECURSIVE every_queue (name) AS (
    (SELECT queue_name FROM tasks_task AS task
     WHERE task.status = 'READY' AND task.ordering_key IS NULL AND task.concurrency_key IS NULL
       AND %(queues)s::text[] IS NULL
     ORDER BY task.queue_name LIMIT 1)
    UNION ALL
    SELECT (SELECT task.queue_name FROM tasks_task AS task
            WHERE task.status = 'READY' AND task.ordering_key IS NULL AND task.concurrency_key IS NULL
              AND task.queue_name > every_queue.name
            ORDER BY task.queue_name LIMIT 1)
    FROM every_queue WHERE every_queue.name IS NOT NULL
), limited_queue AS MATERIALIZED (
    SELECT queue.name, may.room, may.look_at FROM tasks_queue AS queue
    CROSS JOIN LATERAL rowlock_queue_room(queue.name) AS may
    WHERE queue.max_running IS NOT NULL OR queue.rate IS NOT NULL
), queue (name) AS (
    SELECT served.name
    FROM (SELECT unnest(%(queues)s::text[]) UNION SELECT name FROM every_queue WHERE name IS NOT NULL) AS served (name)
    WHERE NOT EXISTS (SELECT FROM tasks_queue WHERE tasks_queue.name = served.name AND tasks_queue.paused)
      AND NOT EXISTS (SELECT FROM limited_queue WHERE limited_queue.name = served.name AND limited_queue.room = 0)
      AND %(unkeyed)s::boolean
), pair AS (
    (SELECT queue.name AS queue_name, first.priority, first.run_after FROM queue, LATERAL (
        SELECT task.priority, task.run_after FROM tasks_task AS task
        WHERE task.status = 'READY' AND task.ordering_key IS NULL AND task.concurrency_key IS NULL
          AND task.queue_name = queue.name
        ORDER BY task.priority DESC, task.run_after LIMIT 1) AS first)
    UNION ALL
    SELECT pair.queue_name, next.priority, next.run_after FROM pair, LATERAL (
        SELECT task.priority, task.run_after FROM tasks_task AS task
        WHERE task.status = 'READY' AND task.ordering_key IS NULL AND task.concurrency_key IS NULL
          AND task.queue_name = pair.queue_name AND task.priority < pair.priority
        ORDER BY task.priority DESC, task.run_after LIMIT 1) AS next
), head AS (
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
), keyed AS (
    SELECT head.id, head.queue_name, head.priority, head.run_after FROM head
    WHERE head.status = 'READY' AND head.run_after <= statement_timestamp()
      AND (SELECT holder.id FROM tasks_task AS holder
           WHERE holder.ordering_key BETWEEN head.ordering_key AND head.ordering_key AND holder.status = 'PROCESSING'
           ORDER BY holder.ordering_key LIMIT 1) IS NULL
      AND (%(queues)s::text[] IS NULL OR head.queue_name = ANY(%(queues)s::text[]))
      AND NOT EXISTS (SELECT FROM tasks_queue WHERE tasks_queue.name = head.queue_name AND tasks_queue.paused)
      AND NOT EXISTS (SELECT FROM limited_queue WHERE limited_queue.name = head.queue_name AND limited_queue.room = 0)
), line AS (
    (SELECT task.concurrency_key, task.queue_name, task.priority, task.run_after, task.id, task.concurrency_limit,
        task.rate_key, task.rate, task.period_seconds, 1 AS number
     FROM tasks_task AS task
     WHERE task.status = 'READY' AND task.concurrency_key IS NOT NULL AND %(keys)s::int > 0
       AND (task.concurrency_key, task.queue_name, task.priority)
           > (%(line_key)s::text, %(line_queue)s::text, %(line_priority)s::smallint)
     ORDER BY task.concurrency_key, task.queue_name, task.priority, task.run_after, task.id LIMIT 1)
    UNION ALL
    SELECT next.*, line.number + 1 FROM line, LATERAL (
        SELECT task.concurrency_key, task.queue_name, task.priority, task.run_after, task.id, task.concurrency_limit,
            task.rate_key, task.rate, task.period_seconds
        FROM tasks_task AS task
        WHERE task.status = 'READY' AND task.concurrency_key IS NOT NULL
          AND (task.concurrency_key, task.queue_name, task.priority)
              > (line.concurrency_key, line.queue_name, line.priority)
        ORDER BY task.concurrency_key, task.queue_name, task.priority, task.run_after, task.id LIMIT 1) AS next
    WHERE line.number < %(keys)s::int
), waiting AS MATERIALIZED (
    SELECT line.queue_name, line.priority, line.run_after, line.id, line.concurrency_key,
        CASE WHEN held.paused OR rated.paused THEN 0 ELSE greatest(0, least(rates.due, limited_queue.room, coalesce(
            held.max_running, line.concurrency_limit, CASE WHEN line.rate_key IS NULL THEN 1 ELSE 32767 END
        ) - running.number)) END AS room,
        CASE WHEN held.paused OR rated.paused THEN NULL WHEN rates.due = 0 THEN rates.next_at
             ELSE clock_timestamp() + interval '0.1 seconds' END AS look_at
    FROM line
    LEFT JOIN limited_queue ON limited_queue.name = line.queue_name
    LEFT JOIN tasks_limit AS held ON held.key = line.concurrency_key
    LEFT JOIN tasks_limit AS rated ON rated.key = line.rate_key
    CROSS JOIN LATERAL (
        SELECT count(*) AS number FROM (
            SELECT FROM tasks_task AS task
            WHERE task.concurrency_key = line.concurrency_key AND task.status = 'PROCESSING' ORDER BY task.slot) AS held
    ) AS running
    LEFT JOIN LATERAL (
        SELECT min(rate.due) AS due, max(rate.next_at) FILTER (WHERE rate.due = 0) AS next_at
        FROM rowlock_rates(line.concurrency_key, line.rate_key, line.rate, line.period_seconds, NULL) AS rate
    ) AS rates ON line.rate_key IS NOT NULL OR held.rate IS NOT NULL
    WHERE line.run_after <= statement_timestamp()
      AND (%(queues)s::text[] IS NULL OR line.queue_name = ANY(%(queues)s::text[]))
      AND NOT EXISTS (SELECT FROM tasks_queue WHERE tasks_queue.name = line.queue_name AND tasks_queue.paused)
), mark AS (
    SELECT queue_name, priority, run_after, id, id AS head_id, NULL AS line_key, NULL::int AS room FROM keyed
    UNION ALL
    SELECT queue_name, priority, run_after, id, NULL, concurrency_key, room FROM waiting WHERE room > 0
    UNION ALL
    SELECT queue_name, priority, statement_timestamp(), 9223372036854775807, NULL, NULL, NULL FROM pair
    WHERE run_after <= statement_timestamp()
), turn AS MATERIALIZED (
    SELECT line.queue_name, coalesce(array_position(%(queues)s::text[], line.queue_name), random()) AS number
    FROM (SELECT DISTINCT queue_name FROM mark) AS line
), stretch AS MATERIALIZED (
    SELECT mark.queue_name, mark.priority, mark.head_id, mark.line_key, mark.run_after AS until, mark.id AS until_id,
        mark.line_key IS NOT NULL OR limited_queue.name IS NOT NULL AS is_limited,
        least(CASE WHEN %(unkeyed)s::boolean THEN %(limit)s::int ELSE 0 END, limited_queue.room,
            CASE WHEN limited_queue.name IS NOT NULL THEN %(at_once)s::int END) AS most,
        least(%(limit)s::int, mark.room, %(at_once)s::int) AS most_of_line,
        lag(mark.run_after, 1, '-infinity') OVER line AS since, lag(mark.id, 1, 0::bigint) OVER line AS since_id
    FROM mark JOIN turn ON turn.queue_name = mark.queue_name
    LEFT JOIN limited_queue ON limited_queue.name = mark.queue_name
    WINDOW line AS (PARTITION BY mark.queue_name, mark.priority ORDER BY mark.run_after, mark.id)
    ORDER BY mark.priority DESC, turn.number, mark.run_after, mark.id
), walk AS (
    SELECT (SELECT CASE WHEN count(*) = %(keys)s::int THEN max(ordering_key) END FROM head) AS next_cursor,
        (SELECT ARRAY[concurrency_key, queue_name, priority::text] FROM line WHERE number = %(keys)s::int) AS next_line,
        EXISTS (SELECT FROM keyed) OR EXISTS (SELECT FROM waiting WHERE room > 0) AS is_due,
        (SELECT date_part('epoch', min(CASE WHEN room = 0 THEN look_at ELSE clock_timestamp() END) - clock_timestamp())
         FROM (SELECT room, look_at FROM waiting UNION ALL SELECT room, look_at FROM limited_queue) AS held) AS look_in
)
SELECT due.id, due.version, due.is_keyed, walk.*
FROM walk LEFT JOIN (
    SELECT chosen.* FROM stretch CROSS JOIN LATERAL (
        (SELECT task.id, task.version, false AS is_keyed FROM tasks_task AS task
         WHERE task.status = 'READY' AND task.ordering_key IS NULL AND task.concurrency_key IS NULL
           AND task.queue_name = stretch.queue_name AND task.priority = stretch.priority
           AND (task.run_after, task.id) > (stretch.since, stretch.since_id)
           AND (task.run_after, task.id) < (stretch.until, stretch.until_id)
         ORDER BY task.run_after, task.id LIMIT (SELECT stretch.most))
        UNION ALL
        (SELECT task.id, task.version, true FROM tasks_task AS task WHERE task.id = stretch.head_id)
        UNION ALL
        (SELECT task.id, task.version, true FROM tasks_task AS task
         WHERE task.status = 'READY' AND task.concurrency_key = stretch.line_key
           AND task.queue_name = stretch.queue_name AND task.priority = stretch.priority
           AND task.run_after <= statement_timestamp()
         ORDER BY task.run_after, task.id LIMIT (SELECT stretch.most_of_line))
    ) AS chosen LIMIT %(limit)s::int
) AS due ON true
"""

# A row that another session has locked counts as a lost race: a plain UPDATE would wait for it.
SWAP = """
WITH locked AS MATERIALIZED (
    SELECT task.*, task.concurrency_key IS NOT NULL OR EXISTS (
        SELECT FROM tasks_queue WHERE tasks_queue.name = task.queue_name
          AND (tasks_queue.max_running IS NOT NULL OR tasks_queue.rate IS NOT NULL)) AS is_limited
    FROM unnest(%(ids)s::bigint[], %(versions)s::int[]) AS seen (id, version) CROSS JOIN LATERAL (
        SELECT task.id, task.task_path, task.attempt, task.max_attempts, task.concurrency_key, task.queue_name
        FROM tasks_task AS task
        WHERE task.id = seen.id AND task.version = seen.version AND task.status = 'READY'
        FOR NO KEY UPDATE SKIP LOCKED) AS task
    LIMIT %(limit)s::int
), candidate AS MATERIALIZED (
    SELECT id, place, is_limited FROM (
        SELECT id, is_limited, row_number() OVER () AS place, count(*) FILTER (
            WHERE attempt + 1 >= max_attempts OR task_path = ANY(%(durable)s::text[])
        ) OVER (ROWS UNBOUNDED PRECEDING) AS alone
        FROM locked
    ) AS due
    WHERE alone = 0 OR (place = 1 AND %(may_be_alone)s::boolean)
), limited AS MATERIALIZED (
    SELECT array_agg(id ORDER BY place) AS ids, array_agg(place ORDER BY place) AS places
    FROM candidate WHERE is_limited
), admitted AS MATERIALIZED (
    SELECT id, place, NULL::smallint AS slot, NULL::smallint AS queue_slot FROM candidate WHERE NOT is_limited
    UNION ALL
    SELECT admitted.* FROM limited CROSS JOIN LATERAL rowlock_admit(limited.ids, limited.places) AS admitted
), taken AS (
    UPDATE tasks_task AS task SET
        status = 'PROCESSING', version = task.version + 1, attempt = task.attempt + 1,
        claimed_by = %(worker_id)s::text, started_at = statement_timestamp(), cancel_requested_at = NULL,
        slot = admitted.slot, queue_slot = admitted.queue_slot
    FROM admitted WHERE task.id = admitted.id
    RETURNING admitted.place, task.id, task.task_path, task.queue_name, task.priority, task.args::text,
        task.kwargs::text, task.version, task.attempt, task.max_attempts, task.ordering_key,
        task.concurrency_key, task.created_at::text, task.run_after::text, task.started_at::text,
        task.traceparent
)
SELECT * FROM taken ORDER BY place
"""


class Candidate(NamedTuple):
    """A task that was read without a lock."""

    id: int
    version: int
    is_keyed: bool


def claim_optimistic(connection: Connection, claimer: Claimer, limit: int) -> list[Claim]:
    """Read more candidates than wanted and swap one after the other; read more if every race is lost.

    Each swap is its own transaction, so no row stays locked while another is taken. It skips candidates that are locked
    or have changed. Otherwise a worker that locks hundreds of rows at once would cost a round trip for each of them.
    """
    wanted = 2 * limit + CANDIDATES_SPARE
    while True:
        candidates = [Candidate(*row[:3]) for row in walk(connection, READ_CANDIDATES, claimer, wanted)]
        taken = _swap_each(connection, claimer, candidates, limit)
        if taken or len(candidates) < wanted:
            return taken
        wanted *= 4


def _is_claimed_alone(claimer: Claimer, claim: Claim) -> bool:
    """True if no other task may be claimed with it: it is on its last attempt, or durable."""
    return claim.attempt >= claim.max_attempts or claim.task_path in claimer.durable


def _swap_each(connection: Connection, claimer: Claimer, rest: list[Candidate], limit: int) -> list[Claim]:
    """Take one candidate after the other; the first one that is free and unchanged, unless it must be claimed alone."""
    taken: list[Claim] = []
    while rest and len(taken) < limit and not (taken and _is_claimed_alone(claimer, taken[-1])):
        tried = rest[:1] if claimer.is_careful else rest
        seen = {"ids": [each.id for each in tried], "versions": [each.version for each in tried]}
        try:
            with statement(connection), connection.cursor() as cursor:
                cursor.execute(SWAP, {**claimer.params(1), **seen, "may_be_alone": not taken})
                claims = claims_of(cursor.fetchall())
        except ERRORS as error:
            if _is_key_taken(error):
                claimer.lost_races += 1
                rest = [candidate for candidate in rest if not candidate.is_keyed]
            elif claimer.is_careful and _is_of_a_row(error):
                rest = rest[1:]
            else:
                raise
            continue
        if claims:
            passed_over = [candidate.id for candidate in rest].index(claims[0].id)
            claimer.lost_races += passed_over
            taken += claims
            rest = rest[passed_over + 1 :]
        elif claimer.is_careful:
            rest = rest[1:]
        else:
            claimer.lost_races += 0 if taken else len(rest)
            break
    return taken


def _is_key_taken(error: Exception) -> bool:
    """True if another task of the same ordering key runs, or one in the same slot, or a limit was just lowered."""
    found = cause(error)
    return isinstance(found, psycopg.Error) and found.diag.constraint_name in GUARDS_OF_KEYS


def _is_of_a_row(error: Exception) -> bool:
    """True if a constraint, trigger or type refused one row; False for errors of the session or a lock."""
    return (sqlstate(error) or "")[:2] in ROW_ERROR_CLASSES


@dataclass(frozen=True)
class Strategy:
    """One way to claim."""

    claim: Callable[[Connection, Claimer, int], list[Claim]]
    max_batch: int  # tasks of one claim
    holds_row: bool = False  # the row stays locked while the task runs
    joins_flush: bool = False  # completions of the last batch may share the claim's transaction


STRATEGIES = {
    "skip_locked": Strategy(claim_locked, max_batch=2_000, joins_flush=True),
    "optimistic": Strategy(claim_optimistic, max_batch=50),
    "pessimistic": Strategy(claim_locked, max_batch=1, holds_row=True),
}
DEFAULT_STRATEGY = "skip_locked"


def claim(connection: Connection, claimer: Claimer, limit: int, strategy: str = DEFAULT_STRATEGY) -> list[Claim]:
    """Claim up to `limit` due tasks in the order priority, run_after, id.

    Two claims may meet on one ordering key, and the unique index lets one through. The other tries again. Its last try
    leaves out keyed tasks, so that one busy key cannot keep it from the rest. Raises the error of a constraint or
    trigger that refuses a row. For some seconds rows are then claimed one by one, around those that are refused.
    """
    chosen = STRATEGIES["optimistic" if claimer.is_careful else strategy]
    limit = min(limit, chosen.max_batch, STRATEGIES[strategy].max_batch)
    claimer.has_more_lines = False
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
