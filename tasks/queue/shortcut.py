"""Two claims that skip the walk over queues and keys, and the default strategy, which tries them first.

- A *plain* line has one queue, one priority and no ordering keys. The claim takes its first rows.
- A *shortcut* starts behind the last claimed task. Finished rows stay in the index until VACUUM, at the front of the
  line. After 30,000 claims beside a transaction of an hour, a claim took 2.8 ms instead of 0.2. So after two slow
  claims in a row, the next ones continue behind the last tasks for a while. Then the front is walked again, soon
  enough for a task that came in before it. After a slow walk that found nothing, one claim may continue behind it,
  however late. A claim of many tasks is reason enough by itself. So is a *tedious* walk; beside a transaction of hours
  it takes seconds. After one, a claim behind the last task that finds nothing does not walk at once either. After
  a walk that found nothing, one of the supervisor's workers makes the next one for all, 5 s later. The others, and
  those that start meanwhile, claim what has become due since. A walk that met its timeout is tried again after 30 s.
  Until one succeeds, tasks of the last ten minutes are claimed. Tasks with keys or limits stand in indexes of their
  own, so beside a tedious walk they are claimed by themselves, with rests of ten times as long, at most 5 s.

Where everything due stood in one queue and priority, the line is *narrow*. Its claims skip the walk while the keys
rest. Beside 100,000 scheduled tasks, a claim of one then took 0.19 ms instead of 0.31.
"""

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from django.db import DatabaseError

from tasks.queue.claim import CLAIM, Claim, Claimer, Ends, claims_of, walk
from tasks.support.database import Connection, fetch, is_cancelled, send_query, statement

MIXED_SECONDS = 1.0  # after a line was not plain, CLAIM_PLAIN is not tried for so long
SLOW_SECONDS = 0.000_5
SECONDS_PER_TASK = 0.000_05  # the cost of a row itself, with room
SHORTCUT_CLAIMS = 10  # a shortcut lasts as long as this many slow claims take,
MOST_SECONDS = 5.0  # but no longer than this
TEDIOUS_SECONDS = 0.05  # after a walk of so long, an empty claim behind the last task waits until the next one is due
MANY = 200  # in one claim: only very short tasks are claimed so many at a time
ENDLESS_SECONDS = 5.0  # a walk that was cancelled after so long met the statement's timeout
CANCELLED_SECONDS = 30.0  # after it no other one is tried for so long
RECENT_SECONDS = 600.0  # without a walk, older tasks are not claimed
LARGE_BYTES = 200_000  # about 4,000 index rows, dead or not
MOST_LINES = 8
KEYED_RESTS = 10  # times as long as a claim of tasks with keys alone took, until the next one
KEYED_REST_SECONDS = 0.1  # at least, if it found none
COMMIT_SECONDS = 1.0  # longer than any commit that was under way during an empty walk

# plain: one row if the line is plain. Its columns are those of the first task, or null if the line is empty.
# `>=`: the dead rows before the first task are not passed a second time.
# locked, candidate, taken: as in claim.CLAIM. The last SELECT returns at least one row, for is_plain.
CLAIM_PLAIN = """
WITH plain AS MATERIALIZED (
    SELECT first.queue_name, first.priority, first.run_after, first.id
    FROM (SELECT) AS one
    LEFT JOIN (
        SELECT queue_name, priority, run_after, id FROM tasks_task
        WHERE status = 'READY' AND ordering_key IS NULL AND concurrency_key IS NULL
        ORDER BY queue_name, priority DESC, run_after, id LIMIT 1) AS first ON true
    LEFT JOIN LATERAL (
        SELECT queue_name, priority FROM tasks_task
        WHERE status = 'READY' AND ordering_key IS NULL AND concurrency_key IS NULL AND first.queue_name IS NOT NULL
        ORDER BY queue_name DESC, priority, run_after DESC, id DESC LIMIT 1) AS last ON true
    WHERE first.queue_name IS NOT DISTINCT FROM last.queue_name AND first.priority IS NOT DISTINCT FROM last.priority
      AND NOT EXISTS (
          SELECT FROM tasks_task WHERE ordering_key IS NOT NULL AND status IN ('READY', 'PROCESSING'))
      AND NOT EXISTS (SELECT FROM tasks_task WHERE concurrency_key IS NOT NULL AND status = 'READY')
      AND NOT EXISTS (SELECT FROM tasks_queue WHERE tasks_queue.name = first.queue_name
                      AND (tasks_queue.max_running IS NOT NULL OR tasks_queue.rate IS NOT NULL))
), locked AS MATERIALIZED (
    SELECT due.* FROM plain CROSS JOIN LATERAL (
        SELECT task.id, task.task_path, task.attempt, task.max_attempts FROM tasks_task AS task
        WHERE task.status = 'READY' AND task.ordering_key IS NULL AND task.concurrency_key IS NULL
          AND task.queue_name = plain.queue_name AND task.priority = plain.priority
          AND (task.run_after, task.id) >= (plain.run_after, plain.id)
          AND task.run_after <= statement_timestamp()
        ORDER BY task.run_after, task.id LIMIT (SELECT %(limit)s::int) FOR NO KEY UPDATE SKIP LOCKED) AS due
    WHERE (%(queues)s::text[] IS NULL OR plain.queue_name = ANY(%(queues)s::text[]))
      AND NOT EXISTS (SELECT FROM tasks_queue WHERE tasks_queue.name = plain.queue_name AND tasks_queue.paused)
), candidate AS MATERIALIZED (
    SELECT id, place FROM (
        SELECT id, row_number() OVER () AS place, count(*) FILTER (
            WHERE attempt + 1 >= max_attempts OR task_path = ANY(%(durable)s::text[])
        ) OVER (ROWS UNBOUNDED PRECEDING) AS alone
        FROM locked
    ) AS due
    WHERE alone = 0 OR (place = 1 AND %(may_be_alone)s::boolean)
), taken AS (
    UPDATE tasks_task AS task SET
        status = 'PROCESSING', version = task.version + 1, attempt = task.attempt + 1,
        claimed_by = %(worker_id)s::text, started_at = statement_timestamp(), cancel_requested_at = NULL
    FROM candidate WHERE task.id = candidate.id
    RETURNING candidate.place, task.id, task.task_path, task.queue_name, task.priority, task.args::text,
        task.kwargs::text, task.version, task.attempt, task.max_attempts, task.ordering_key,
        task.concurrency_key, task.created_at::text, task.run_after::text, task.started_at::text,
        task.traceparent
)
SELECT taken.*, EXISTS (SELECT FROM plain) AS is_plain FROM (SELECT) AS one LEFT JOIN taken ON true ORDER BY place
"""

# age: seconds since a walk found nothing due. Tasks that others have taken since then are skipped too.
CLAIM_BEHIND = """
WITH behind AS MATERIALIZED (
    SELECT place.queue_name, place.priority, place.id, place.number,
        greatest(place.run_after, statement_timestamp() - make_interval(secs => %(age)s::float8)) AS run_after
    FROM unnest(%(queue_names)s::text[], %(priorities)s::smallint[], %(run_afters)s::timestamptz[], %(ids)s::bigint[])
        WITH ORDINALITY AS place (queue_name, priority, run_after, id, number)
    WHERE NOT EXISTS (SELECT FROM tasks_queue WHERE tasks_queue.name = place.queue_name AND (
        tasks_queue.paused OR tasks_queue.max_running IS NOT NULL OR tasks_queue.rate IS NOT NULL))
    ORDER BY place.number
), locked AS MATERIALIZED (
    SELECT due.* FROM behind CROSS JOIN LATERAL (
        SELECT task.id, task.task_path, task.attempt, task.max_attempts FROM tasks_task AS task
        WHERE task.status = 'READY' AND task.ordering_key IS NULL AND task.concurrency_key IS NULL
          AND task.queue_name = behind.queue_name AND task.priority = behind.priority
          AND (task.run_after, task.id) > (behind.run_after, behind.id)
          AND task.run_after <= statement_timestamp()
        ORDER BY task.run_after, task.id LIMIT (SELECT %(limit)s::int) FOR NO KEY UPDATE SKIP LOCKED) AS due
    LIMIT %(limit)s::int
), candidate AS MATERIALIZED (
    SELECT id, place FROM (
        SELECT id, row_number() OVER () AS place, count(*) FILTER (
            WHERE attempt + 1 >= max_attempts OR task_path = ANY(%(durable)s::text[])
        ) OVER (ROWS UNBOUNDED PRECEDING) AS alone
        FROM locked
    ) AS due
    WHERE alone = 0 OR (place = 1 AND %(may_be_alone)s::boolean)
), taken AS (
    UPDATE tasks_task AS task SET
        status = 'PROCESSING', version = task.version + 1, attempt = task.attempt + 1,
        claimed_by = %(worker_id)s::text, started_at = statement_timestamp(), cancel_requested_at = NULL
    FROM candidate WHERE task.id = candidate.id
    RETURNING candidate.place, task.id, task.task_path, task.queue_name, task.priority, task.args::text,
        task.kwargs::text, task.version, task.attempt, task.max_attempts, task.ordering_key,
        task.concurrency_key, task.created_at::text, task.run_after::text, task.started_at::text,
        task.traceparent
)
SELECT * FROM taken ORDER BY place
"""

# The queues and priorities of the newest rows, whatever became of them.
RECENT_LINES = """
SELECT queue_name, priority, (statement_timestamp() - make_interval(secs => %(seconds)s::float8))::text AS since
FROM (SELECT queue_name, priority FROM tasks_task ORDER BY id DESC LIMIT 1000) AS newest
WHERE %(queues)s::text[] IS NULL OR queue_name = ANY(%(queues)s::text[])
GROUP BY queue_name, priority
"""

SIZE = "SELECT coalesce(pg_relation_size(to_regclass('tasks_task_claim')), 0) AS size"


@dataclass(frozen=True, slots=True)
class Shortcut:
    """Where the next claims begin, in this order. Times are `time.monotonic()`."""

    ends: Ends
    until: float
    empty_at: float | None = None  # a walk found nothing due; then one claim may use the shortcut, however late
    is_tedious: bool = False  # the walk took TEDIOUS_SECONDS or more


def claim_locked(connection: Connection, claimer: Claimer, limit: int) -> list[Claim]:
    """Lock up to `limit` rows and take them in one statement; skip rows that others hold."""
    if _may_claim_keyed(claimer) and (keyed := _claim_keyed(connection, claimer, limit)):
        return keyed
    shortcut = _taken_from(claimer)
    if shortcut is None and time.monotonic() < claimer.walks.next_at:
        shortcut = _without_walk(connection, claimer)
    if shortcut:
        with statement(connection), connection.cursor() as cursor:
            cursor.execute(CLAIM_BEHIND, behind_params(claimer, shortcut, limit, may_be_alone=True))
            taken = _note_behind(claimer, shortcut, cursor.fetchall())
        if taken or claimer.shortcut:
            return taken
    began = time.monotonic()
    if claimer.walks.next_at:  # it will take long: no other worker walks beside this one
        claimer.walks.next_at = began + CANCELLED_SECONDS
    try:
        return _claim_from_front(connection, claimer, limit)
    except (psycopg.Error, DatabaseError) as error:
        now = time.monotonic()
        was_long = now - began >= ENDLESS_SECONDS  # a person may have cancelled it sooner
        claimer.walks.next_at = now + CANCELLED_SECONDS if was_long and is_cancelled(error) else 0.0
        raise


def _may_claim_keyed(claimer: Claimer) -> bool:
    """True if tasks with keys would wait for a walk that takes long, and have rested."""
    shortcut = claimer.shortcut
    return shortcut is not None and shortcut.is_tedious and bool(claimer.keys) and time.monotonic() >= claimer.keyed_at


def _claim_keyed(connection: Connection, claimer: Claimer, limit: int) -> list[Claim]:
    """Claim tasks with keys or limits alone: no dead row of others is passed."""
    taken: list[Claim] = []
    began = time.monotonic()
    try:
        taken = claims_of(walk(connection, CLAIM, claimer, limit, unkeyed=False))
    finally:
        now = time.monotonic()
        rest = max(KEYED_RESTS * (now - began), 0.0 if taken else KEYED_REST_SECONDS)
        claimer.keyed_at = now + min(rest, MOST_SECONDS)
    return taken


def _claim_from_front(connection: Connection, claimer: Claimer, limit: int) -> list[Claim]:
    """Walk the line from its front, and open a shortcut for the next claims where that was slow."""
    began = time.monotonic()
    plain = _claim_plain(connection, claimer, limit)
    if plain is None:
        rows = walk(connection, CLAIM, claimer, limit)
        taken = claims_of(rows)
        if taken and rows[0][-5]:  # is_narrow
            front: Ends = {(taken[0].queue_name, taken[0].priority): ("-infinity", 0)}
            claimer.shortcut = Shortcut(front, claimer.keys_rest_until)
    else:
        taken = plain
    _note_claim(connection, claimer, taken, time.monotonic() - began)
    return taken


def send(connection: psycopg.Connection, claimer: Claimer, limit: int) -> Callable[[], list[Claim]] | None:
    """Send a claim behind the last task; returns the function that reads its answer, or None without a shortcut.

    The worker still has other tasks, so nothing is taken that must be claimed alone. Until the answer is read,
    connection and claimer take nothing else. Reading raises psycopg.Error.
    """
    shortcut = None if _may_claim_keyed(claimer) else _taken_from(claimer)
    if shortcut is None:
        return None
    read = send_query(connection, CLAIM_BEHIND, behind_params(claimer, shortcut, limit, may_be_alone=False))
    return lambda: _note_behind(claimer, shortcut, read())


def is_walk_due(claimer: Claimer) -> bool:
    """True if the next claim walks the line from its front, and that takes long."""
    shortcut, now = claimer.shortcut, time.monotonic()
    return shortcut is not None and shortcut.is_tedious and now >= max(shortcut.until, claimer.walks.next_at)


def _taken_from(claimer: Claimer) -> Shortcut | None:
    """Take the open shortcut out of the claimer. A claim that finds tasks puts it back."""
    shortcut, claimer.shortcut = claimer.shortcut, None
    if shortcut is None or (shortcut.empty_at is None and time.monotonic() >= shortcut.until):
        return None
    return shortcut


def _without_walk(connection: Connection, claimer: Claimer) -> Shortcut | None:
    """Begin with what has become due since a walk found nothing: another worker walks, or nobody can.

    None if the table has no row of its queues.
    """
    now, empty_at = time.monotonic(), claimer.walks.empty_at
    seconds = min(now - empty_at + COMMIT_SECONDS, RECENT_SECONDS) if empty_at else RECENT_SECONDS
    rows = fetch(connection, RECENT_LINES, {"queues": claimer.queues, "seconds": seconds})
    ends: Ends = {(row["queue_name"], row["priority"]): (row["since"], 0) for row in rows}
    until = min(claimer.walks.next_at, now + MOST_SECONDS)
    return Shortcut(_in_order(claimer, ends), until, is_tedious=not claimer.is_burst) if ends else None


def _in_order(claimer: Claimer, ends: Ends) -> Ends:
    """The same ends, in the order in which claims serve their queues and priorities."""
    turns = {name: number for number, name in enumerate(claimer.queues or ())}
    lines = sorted(ends, key=lambda line: (-line[1], turns.get(line[0], random.random())))  # noqa: S311
    return {line: ends[line] for line in lines}


def behind_params(claimer: Claimer, shortcut: Shortcut, limit: int, *, may_be_alone: bool) -> dict[str, Any]:
    """The parameters of CLAIM_BEHIND."""
    return {
        "worker_id": claimer.worker_id,
        "limit": limit,
        "durable": claimer.durable,
        "may_be_alone": may_be_alone,
        "queue_names": [queue_name for queue_name, _ in shortcut.ends],
        "priorities": [priority for _, priority in shortcut.ends],
        "run_afters": [run_after for run_after, _ in shortcut.ends.values()],
        "ids": [id for _, id in shortcut.ends.values()],
        "age": None if shortcut.empty_at is None else time.monotonic() - shortcut.empty_at + COMMIT_SECONDS,
    }


def _note_behind(claimer: Claimer, shortcut: Shortcut, rows: list[tuple[Any, ...]]) -> list[Claim]:
    """The claims; the next one continues behind them. After a tedious walk it does so even if there are none."""
    taken = claims_of(rows)
    end: Ends = _note_end(claimer, taken)
    if taken:
        claimer.is_from_start = False
    if time.monotonic() < shortcut.until and (taken or shortcut.is_tedious):
        empty_at = None if taken else shortcut.empty_at
        claimer.shortcut = replace(shortcut, ends=shortcut.ends | end, empty_at=empty_at)
        claimer.look_at = shortcut.until
    return taken


def _note_end(claimer: Claimer, taken: Sequence[Claim]) -> Ends:
    """Remember the last task without a key, among those of the latest MOST_LINES queues and priorities."""
    last = next(
        (claim for claim in reversed(taken) if claim.ordering_key is None and claim.concurrency_key is None), None
    )
    if last is None:
        return {}
    end: Ends = {(last.queue_name, last.priority): (last.run_after, last.id)}
    others = {line: other for line, other in claimer.ends.items() if line not in end}
    claimer.ends = dict([*others.items(), *end.items()][-MOST_LINES:])
    return end


def _claim_plain(connection: Connection, claimer: Claimer, limit: int) -> list[Claim] | None:
    """Claim if the line is plain, else None. A plain line has no keys, so the claim cannot fail on one."""
    if time.monotonic() < claimer.line_is_mixed_until:
        return None
    with connection.cursor() as cursor:
        cursor.execute(CLAIM_PLAIN, claimer.params(limit))
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    is_plain, is_found = rows[0][-1], rows[0][0] is not None
    if not is_plain:
        claimer.line_is_mixed_until = time.monotonic() + MIXED_SECONDS
        return None
    claimer.begin_at(None, None)
    claimer.is_from_start, claimer.look_at = not is_found, math.inf
    return claims_of(rows) if is_found else []


def _note_claim(connection: Connection, claimer: Claimer, taken: list[Claim], seconds: float) -> None:
    """Open a shortcut after two slow claims from the front of the line, a tedious one, or a claim of many tasks.

    A small index is no reason: then the machine was only busy.
    """
    _note_end(claimer, taken)
    claimer.walks.next_at = 0.0
    was_slow, claimer.is_slow = claimer.is_slow, seconds > SLOW_SECONDS + SECONDS_PER_TASK * len(taken)
    is_tedious = seconds >= TEDIOUS_SECONDS
    if not ((was_slow and claimer.is_slow) or is_tedious or len(taken) >= MANY):
        return
    claimer.shortcut = None
    if fetch(connection, SIZE)[0]["size"] < LARGE_BYTES:
        return
    waits, now = is_tedious and not claimer.is_burst, time.monotonic()
    most = MOST_SECONDS * random.uniform(0.6, 1)  # noqa: S311  so that not all hosts walk at the same time
    until = now + min(SHORTCUT_CLAIMS * seconds, most)
    if claimer.ends:
        claimer.shortcut = Shortcut(_in_order(claimer, claimer.ends), until, None if taken else now, waits)
    if waits and not taken:
        claimer.walks.next_at, claimer.walks.empty_at = until, now - seconds
