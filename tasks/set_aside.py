"""Find the one row or worker that the database refuses to a sweep, and set it aside, so that the rest is recovered.

A constraint or a trigger of an adopter can make one UPDATE fail. In one statement with a thousand others it would end
every sweep of every worker. What is set aside is told under *Needs attention* and tried again ever more rarely.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import django.db
import psycopg

from tasks import audit
from tasks.database import Connection, fetch, transaction

logger = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R")
# The two kinds of connection have errors of their own.
ERRORS = (psycopg.Error, django.db.Error)
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 5, 600
LONGEST_SEARCH_SECONDS = 2.0  # a row may be refused by a wait for a lock; the next sweep goes on
LONGEST_ERROR = 500

# What deferred constraints refuse would be refused at the commit, where nothing can be told apart any more.
AT_ONCE = "SET CONSTRAINTS ALL IMMEDIATE"

STANDING = "SELECT task_id, worker_id, retry_at <= clock_timestamp() AS is_due FROM tasks_recoveryfailure"
NOTE = """
INSERT INTO tasks_recoveryfailure AS known (target, task_id, worker_id, error, retry_at)
SELECT refused.target, refused.task_id,
    coalesce(refused.worker_id, (SELECT claimed_by FROM tasks_task WHERE id = refused.task_id), ''),
    refused.error, clock_timestamp() + make_interval(secs => %(first)s::float8)
FROM unnest(%(targets)s::text[], %(task_ids)s::bigint[], %(worker_ids)s::text[], %(errors)s::text[])
    AS refused (target, task_id, worker_id, error)
ON CONFLICT (target) DO UPDATE SET worker_id = excluded.worker_id, error = excluded.error, tries = known.tries + 1,
    retry_at = clock_timestamp() + make_interval(
        secs => least(%(longest)s::float8, %(first)s::float8 * power(2, least(known.tries, 20))))
RETURNING target, error, tries
"""
FORGET = """
DELETE FROM tasks_recoveryfailure WHERE retry_at <= clock_timestamp() AND target <> ALL(%(but)s::text[])
"""


@dataclass
class Writes:
    """The writes of one sweep: each for all at once, or when `is_careful` in ever smaller parts where it is refused.

    `tasks` and `workers` are those that were refused, with the error.
    """

    connection: Connection
    is_careful: bool = False
    tasks: dict[int, Exception] = field(default_factory=dict)
    workers: dict[str, Exception] = field(default_factory=dict)
    until: float = field(default_factory=lambda: time.monotonic() + LONGEST_SEARCH_SECONDS)

    def for_workers(self, items: Sequence[T], write: Callable[[Sequence[T]], list[R]]) -> list[R]:
        """`write` for these workers: ids, or states, which have one."""

        def refuse(item: T, error: Exception) -> None:
            self.workers[str(getattr(item, "id", item))] = error

        return self._write(items, write, refuse)

    def for_tasks(self, ids: Sequence[int], write: Callable[[Sequence[int]], list[R]]) -> list[R]:
        """`write` for these tasks."""
        return self._write(ids, write, self.tasks.__setitem__)

    def _write(
        self, items: Sequence[T], write: Callable[[Sequence[T]], list[R]], refuse: Callable[[T, Exception], None]
    ) -> list[R]:
        if not items or not self.is_careful:
            return write(items) if items else []
        try:
            with transaction(self.connection):
                return write(items)
        except ERRORS as error:
            if len(items) == 1:
                refuse(items[0], error)
                return []
        if time.monotonic() > self.until:
            return []
        half = len(items) // 2
        return self._write(items[:half], write, refuse) + self._write(items[half:], write, refuse)


def attempt(connection: Connection, work: Callable[[Writes], R]) -> R:
    """Call `work`, whose transaction is its own, and once more carefully when something in it was refused."""
    try:
        return work(Writes(connection))
    except ERRORS:
        if is_lost(connection):
            raise
    return work(Writes(connection, is_careful=True))


def be_careful(connection: Connection) -> None:
    """At the beginning of a careful transaction."""
    with connection.cursor() as cursor:
        cursor.execute(AT_ONCE)


@dataclass(frozen=True)
class Aside:
    """What is to be left alone for now; `has_due`: something else is to be tried again."""

    tasks: frozenset[int] = frozenset()
    workers: frozenset[str] = frozenset()
    has_due: bool = False


def standing(connection: Connection) -> Aside:
    """What earlier sweeps have set aside."""
    rows = fetch(connection, STANDING)
    resting = [row for row in rows if not row["is_due"]]
    return Aside(
        frozenset(row["task_id"] for row in resting if row["task_id"] is not None),
        frozenset(row["worker_id"] for row in resting if row["task_id"] is None),
        len(resting) < len(rows),
    )


def note(connection: Connection, writes: Writes) -> None:
    """Set aside what was refused, until its next try; say so when that is new."""
    if not writes.tasks and not writes.workers:
        return
    params: dict[str, Any] = {
        "targets": [*map(audit.task, writes.tasks), *map(audit.worker, writes.workers)],
        "task_ids": [*writes.tasks, *([None] * len(writes.workers))],
        "worker_ids": [*([None] * len(writes.tasks)), *writes.workers],
        "errors": [said(error) for error in (*writes.tasks.values(), *writes.workers.values())],
        "first": FIRST_RETRY_SECONDS,
        "longest": LONGEST_RETRY_SECONDS,
    }
    for row in fetch(connection, NOTE, params):
        if row["tries"] == 1:
            logger.error("recovery of %s was refused, and is set aside: %s", row["target"], row["error"])


def forget(connection: Connection, writes: Writes) -> None:
    """Drop what was tried again and not refused."""
    refused = [*map(audit.task, writes.tasks), *map(audit.worker, writes.workers)]
    with connection.cursor() as cursor:
        cursor.execute(FORGET, {"but": refused})


def is_lost(connection: Connection) -> bool:
    """Whether the session ended with the error, so that nothing can be tried again in it."""
    inner = connection if isinstance(connection, psycopg.Connection) else connection.connection  # type: ignore[attr-defined]
    return inner is None or bool(inner.closed)


def said(error: Exception) -> str:
    """The error in one line, without the details, which may show a row's contents."""
    found = cause(error)
    diagnosis = found.diag.message_primary if isinstance(found, psycopg.Error) else None
    return " ".join((diagnosis or str(found)).split())[:LONGEST_ERROR]


def cause(error: Exception) -> BaseException:
    """The driver's own error, which Django wraps."""
    return error.__cause__ if isinstance(error, django.db.Error) and error.__cause__ else error
