"""Claim READY tasks: one statement locks them, spends their attempt and makes them PROCESSING.

The attempt is spent at the claim, so a task that kills its worker ends FAILED, not in a loop. Within a queue the order
is priority, run_after, id. A unique index guarantees that at most one task of an ordering key runs.

CLAIM starts at the front of the line. `shortcut` tries two faster claims before it. `strategies` picks a worker's
claim; its optimistic one locks nothing while it chooses.
"""

import ctypes
import json
import math
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

from tasks.exceptions import PayloadLocked
from tasks.framework import payload
from tasks.models import SLOTS
from tasks.support.database import Connection, statement
from tasks.support.redaction import ENVELOPE

KEYS_PER_STRIDE = 300
# A hundred keys that are not due cost as much as the rest of a claim of one task. So they rest when none was due.
KEYS_REST_SECONDS = 0.02
SOON_SECONDS = 0.02  # until a worker that found a slot taken, or a rate just spent, looks again
STRIDES = 10  # of one claim; about 2 ms each when thousands of keys wait for their time

# queue: the queues that this worker serves, without those that are paused.
# pair: each queue and priority that has READY tasks without a key, one index step each.
# head: the earliest unfinished task of each key. A stride reads some hundred keys, from a cursor that wraps.
# keyed: the heads that are due, of keys that are free. A key is held by its PROCESSING task, and by one that waits for
#   its retry. The holder need not be the earliest: an enqueuer may commit a lower id late. The holder is
#   asked for so that only the index of running keys serves: by statistics of a quiet hour all indexes of running tasks
#   look empty, and a join would read all of these for each key.
# unkeyed: false where the line of tasks without a key is full of dead rows, so that only those with keys are claimed.
# turn: the order of the queues. Queues that are not named come in random order.
# stretch: the line of a queue and priority, cut at each head of a key in it. First come the tasks without a key before
#   the head, then the head. So neither kind can starve the other.
# locked: the outer LIMIT asks for one row after the other, so no row is locked and then left. The inner LIMIT is a
#   subquery, because the planner would sort a whole queue that its estimate calls short. Without MATERIALIZED the
#   subquery may run twice and claim too many (fault F3).
# candidate: the batch ends before the first task that is durable or on its last attempt. Such a task is claimed alone.
#   Claimed ahead, it would be FAILED unbegun if the worker and its supervisor died.
# walk: the next stride over the keys begins behind this one, at the first key (''), or nowhere: none is due.
# The last SELECT returns at least one row, so that the cursor comes back when nothing was taken. is_narrow: everything
#   due was in one queue and priority, or was the head of one key.
CLAIM = """
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
), locked AS MATERIALIZED (
    SELECT due.*, stretch.is_limited FROM stretch CROSS JOIN LATERAL (
        SELECT * FROM (
            SELECT task.id, task.task_path, task.attempt, task.max_attempts FROM tasks_task AS task
            WHERE task.status = 'READY' AND task.ordering_key IS NULL AND task.concurrency_key IS NULL
              AND task.queue_name = stretch.queue_name AND task.priority = stretch.priority
              AND (task.run_after, task.id) > (stretch.since, stretch.since_id)
              AND (task.run_after, task.id) < (stretch.until, stretch.until_id)
            ORDER BY task.run_after, task.id LIMIT (SELECT stretch.most) FOR NO KEY UPDATE SKIP LOCKED) AS unkeyed
        UNION ALL
        SELECT * FROM (
            SELECT task.id, task.task_path, task.attempt, task.max_attempts FROM tasks_task AS task
            WHERE task.id = stretch.head_id AND task.status = 'READY' AND task.run_after <= statement_timestamp()
            FOR NO KEY UPDATE SKIP LOCKED) AS head_row
        UNION ALL
        SELECT * FROM (
            SELECT task.id, task.task_path, task.attempt, task.max_attempts FROM tasks_task AS task
            WHERE task.status = 'READY' AND task.concurrency_key = stretch.line_key
              AND task.queue_name = stretch.queue_name AND task.priority = stretch.priority
              AND task.run_after <= statement_timestamp()
            ORDER BY task.run_after, task.id LIMIT (SELECT stretch.most_of_line)
            FOR NO KEY UPDATE SKIP LOCKED) AS of_line
    ) AS due LIMIT %(limit)s::int
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
), walk AS (
    SELECT (SELECT CASE WHEN count(*) = %(keys)s::int THEN max(ordering_key) END FROM head) AS next_cursor,
        (SELECT ARRAY[concurrency_key, queue_name, priority::text] FROM line WHERE number = %(keys)s::int) AS next_line,
        EXISTS (SELECT FROM keyed) OR EXISTS (SELECT FROM waiting WHERE room > 0) AS is_due,
        (SELECT date_part('epoch', min(CASE WHEN room = 0 THEN look_at ELSE clock_timestamp() END) - clock_timestamp())
         FROM (SELECT room, look_at FROM waiting UNION ALL SELECT room, look_at FROM limited_queue) AS held) AS look_in
)
SELECT taken.*, (SELECT count(*) = 1 FROM mark) AS is_narrow, walk.*
FROM walk LEFT JOIN taken ON true ORDER BY taken.place
"""

# The last task without a key that was claimed of a queue and priority: its run_after, as PostgreSQL's text, and id.
Ends = dict[tuple[str, int], tuple[str, int]]
# A line of limited tasks: key, queue and priority.
Line = tuple[str, ...]
FIRST_LINE: Line = ("", "", "-101")
# PostgreSQL writes no space around JSON. To look for it, `json.loads` takes longer than for short arguments themselves.
read_json = json.JSONDecoder().raw_decode


@dataclass(slots=True)
class Claim:
    """A claimed task. JSON and times stay text as PostgreSQL writes them, since few handlers read them."""

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
    concurrency_key: str | None
    created_at: str
    run_after: str
    started_at: str
    traceparent: str | None
    opened: tuple[list[Any], dict[str, Any]] | None = None  # the decrypted arguments

    def claimed_at(self) -> datetime:
        """`started_at` as the claim wrote it."""
        return datetime.fromisoformat(self.started_at)

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """The decoded positional and keyword arguments. Raises PayloadLocked if no key here opens them."""
        if self.opened is not None:
            return self.opened
        args = [] if self.args == "[]" else read_json(self.args)[0]
        return (args, {}) if self.kwargs == "{}" else payload.opened_call(args, read_json(self.kwargs)[0])

    def is_locked(self) -> bool:
        """True if its arguments are encrypted and no key here opens them; else they are decrypted once."""
        if ENVELOPE not in self.kwargs:
            return False
        try:
            self.opened = self.arguments()
        except PayloadLocked:
            return True
        except (ValueError, RecursionError):  # they fail the attempt, see `Runner`
            return False
        return False


class Walks(ctypes.Structure):
    """Tedious walks over the whole line, one at a time for a supervisor's workers. Times are `time.monotonic()`."""

    _fields_: ClassVar = [
        ("next_at", ctypes.c_double),  # until then nobody walks; 0: each worker walks for itself
        ("empty_at", ctypes.c_double),  # when the last walk began that found nothing due; 0: none has
    ]


@dataclass
class Claimer:
    """A claiming worker: what it serves, and what it has learnt from its last claims. Times are `time.monotonic()`."""

    worker_id: str
    queues: list[str] | None = None  # that it serves, in its order; None: all
    durable: list[str] = field(default_factory=list)  # paths of tasks that are claimed alone
    is_burst: bool = False  # it ends once nothing is due, so it never waits before it looks at the whole line
    cursor: str | None = ""  # the ordering key where the next stride begins; None: behind the last one
    line: Line | None = FIRST_LINE  # the line of limited tasks where it begins
    at_once: int = SLOTS  # tasks of one limit in a claim
    keys: int = KEYS_PER_STRIDE  # in a stride; 0 claims no keyed tasks
    keys_rest_until: float = 0.0
    keyed_at: float = 0.0  # when tasks with keys or limits may next be claimed by themselves
    line_is_mixed_until: float = 0.0
    careful_until: float = 0.0
    lost_races: int = 0  # candidates that others took first
    is_from_start: bool = False  # nothing was found since the walk began at the first key
    is_slow: bool = False  # the last claim from the front of the line was slow
    has_more_lines: bool = False  # of limited tasks than the last claim's stride
    look_at: float = math.inf  # when a limit may allow more; inf: no task is held back
    shortcut: Any = None  # a `shortcut.Shortcut`
    ends: Ends = field(default_factory=dict)
    walks: Walks = field(default_factory=Walks)

    @property
    def look_in(self) -> float:
        """Seconds until a limit may allow more than at the last claim; inf if none held a task back."""
        return max(0.0, self.look_at - time.monotonic())

    @property
    def has_been_round(self) -> bool:
        """True if the last claim found nothing although it had seen every key: nothing is due."""
        return self.is_from_start and self.is_at_first

    @property
    def is_at_first(self) -> bool:
        """True if the next stride begins at the first key and line."""
        return (self.cursor, self.line) == ("", FIRST_LINE)

    def begin_at(self, cursor: str | None, line: Line | None) -> bool:
        """Begin the next stride here, or at the first key if both walks are over; True if they are."""
        is_over = cursor is None and line is None
        self.cursor, self.line = ("", FIRST_LINE) if is_over else (cursor, line)
        return is_over

    @property
    def is_careful(self) -> bool:
        """True for some seconds after the database refused a row: rows are then claimed one by one."""
        return time.monotonic() < self.careful_until

    def forget_ends(self) -> None:
        """Start the next claim at the front of the line, where released tasks stand."""
        self.ends, self.shortcut = {}, None

    def params(self, limit: int, *, unkeyed: bool = True) -> dict[str, Any]:
        """The parameters of a claim from the front of the line; not `unkeyed`: of tasks with keys or limits alone."""
        return {
            "worker_id": self.worker_id,
            "queues": self.queues,
            "cursor": self.cursor,
            "line_key": self.line and self.line[0],
            "line_queue": self.line and self.line[1],
            "line_priority": self.line and self.line[2],
            "at_once": self.at_once,
            "keys": 0 if time.monotonic() < self.keys_rest_until else self.keys,
            "unkeyed": unkeyed,
            "limit": limit,
            "durable": self.durable,
            "may_be_alone": True,
        }


def walk(
    connection: Connection, sql: str, claimer: Claimer, limit: int, *, unkeyed: bool = True
) -> list[tuple[Any, ...]]:
    """Claim up to `limit` tasks, stride by stride over keys and lines, until there are some or all have been seen."""
    claimer.look_at = math.inf
    for _ in range(STRIDES):
        params = claimer.params(limit, unkeyed=unkeyed)
        with statement(connection), connection.cursor() as cursor:
            cursor.execute(sql, params)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
        next_cursor, next_line, is_due, look_in = rows[0][-4:]
        claimer.has_more_lines = next_line is not None
        if params["keys"] == claimer.keys:  # they do not rest
            began_at_first = claimer.is_at_first
            claimer.is_from_start = claimer.is_from_start or began_at_first
            if claimer.begin_at(next_cursor, next_line and tuple(next_line)) and began_at_first and not is_due:
                claimer.keys_rest_until = time.monotonic() + KEYS_REST_SECONDS
        if look_in is not None:
            claimer.look_at = min(claimer.look_at, time.monotonic() + max(look_in, SOON_SECONDS))
        if rows[0][0] is not None:
            claimer.is_from_start = False
            return rows
        claimer.keys_rest_until = 0.0  # nothing else is due
        if claimer.has_been_round:
            break
    return []


def claims_of(rows: list[tuple[Any, ...]]) -> list[Claim]:
    """The claims in the answer of a claiming statement."""
    return [Claim(*row[1:16]) for row in rows]
