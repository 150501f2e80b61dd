"""Find the one row or worker whose update the database refuses in a sweep, and set it aside.

A constraint or trigger of an adopter can make one UPDATE fail. One statement writes a thousand rows, so it would fail
in every sweep of every worker. Rows set aside are shown under *Needs attention* and retried ever more rarely.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import django.db
import psycopg

from tasks.support import audit
from tasks.support.database import Connection, execute, fetch, transaction

logger = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R")
ERRORS = (psycopg.Error, django.db.Error)  # of the two kinds of connection
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 5, 600
LONGEST_SEARCH_SECONDS = 2.0  # a refusal may take a lock timeout; the next sweep continues
LONGEST_ERROR = 500

# A deferred constraint would fail only at the commit, where the refused row is unknown.
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
    """The writes of one sweep, each for all rows at once.

    With `is_careful`, a refused write is repeated for each half of its rows, until single rows are refused, or until a
    moment of `time.monotonic()`. `tasks` and `workers` hold those rows, with the error.
    """

    connection: Connection
    is_careful: bool = False
    tasks: dict[int, Exception] = field(default_factory=dict)
    workers: dict[str, Exception] = field(default_factory=dict)
    until: float = field(default_factory=lambda: time.monotonic() + LONGEST_SEARCH_SECONDS)

    def for_workers(self, items: Sequence[T], write: Callable[[Sequence[T]], list[R]]) -> list[R]:
        """Call `write` for these workers, given as ids or states."""
        return self._write(items, write, self.workers)

    def for_tasks(self, ids: Sequence[int], write: Callable[[Sequence[int]], list[R]]) -> list[R]:
        """Call `write` for these tasks."""
        return self._write(ids, write, self.tasks)

    def refused(self) -> dict[int, str]:
        """The refused tasks, each with its error in one line."""
        return {task_id: one_line(error) for task_id, error in self.tasks.items()}

    def targets(self) -> list[str]:
        """All that was refused, by its name in the audit."""
        return [*map(audit.task, self.tasks), *map(audit.worker, self.workers)]

    def _write(
        self, items: Sequence[T], write: Callable[[Sequence[T]], list[R]], refused: dict[Any, Exception]
    ) -> list[R]:
        if not items or not self.is_careful:
            return write(items) if items else []
        try:
            with transaction(self.connection):
                return write(items)
        except ERRORS as error:
            if len(items) == 1:
                refused[getattr(items[0], "id", items[0])] = error
                return []
        if time.monotonic() > self.until:
            return []
        half = len(items) // 2
        return self._write(items[:half], write, refused) + self._write(items[half:], write, refused)


def attempt(connection: Connection, work: Callable[[Writes], R]) -> R:
    """Call `work`; if the database refuses a write, call it again, carefully.

    Raises the error if it ended the session, which then cannot retry.
    """
    try:
        return work(Writes(connection))
    except ERRORS:
        inner = connection if isinstance(connection, psycopg.Connection) else connection.connection  # type: ignore[attr-defined]
        if inner is None or inner.closed:
            raise
    return work(Writes(connection, is_careful=True))


def attempt_in_transaction(connection: Connection, work: Callable[[Writes], R], *, rollback: bool = False) -> R:
    """Like `attempt`, each time in a transaction; with `rollback` it is rolled back."""

    def in_transaction(writes: Writes) -> R:
        with transaction(connection, rollback=rollback):
            if writes.is_careful:
                execute(connection, AT_ONCE)
            return work(writes)

    return attempt(connection, in_transaction)


def standing(connection: Connection) -> tuple[list[int], list[str], bool]:
    """The tasks and workers that earlier sweeps set aside, to skip for now; True if others are due for a retry."""
    rows = fetch(connection, STANDING)
    resting = [row for row in rows if not row["is_due"]]
    tasks = [row["task_id"] for row in resting if row["task_id"] is not None]
    workers = [row["worker_id"] for row in resting if row["task_id"] is None]
    return tasks, workers, len(resting) < len(rows)


def note(writes: Writes) -> None:
    """Set refused targets aside until their next retry; log new ones."""
    if not writes.tasks and not writes.workers:
        return
    params: dict[str, Any] = {
        "targets": writes.targets(),
        "task_ids": [*writes.tasks, *([None] * len(writes.workers))],
        "worker_ids": [*([None] * len(writes.tasks)), *writes.workers],
        "errors": [one_line(error) for error in (*writes.tasks.values(), *writes.workers.values())],
        "first": FIRST_RETRY_SECONDS,
        "longest": LONGEST_RETRY_SECONDS,
    }
    for row in fetch(writes.connection, NOTE, params):
        if row["tries"] == 1:
            logger.error("recovery of %s was refused, and is set aside: %s", row["target"], row["error"])


def forget(writes: Writes) -> None:
    """Drop targets whose retry succeeded."""
    execute(writes.connection, FORGET, {"but": writes.targets()})


def one_line(error: Exception) -> str:
    """The error in one line, without details, which may show a row's contents."""
    found = cause(error)
    diagnosis = found.diag.message_primary if isinstance(found, psycopg.Error) else None
    return " ".join((diagnosis or str(found)).split())[:LONGEST_ERROR]


def cause(error: Exception) -> BaseException:
    """The driver's error inside Django's."""
    return error.__cause__ if isinstance(error, django.db.Error) and error.__cause__ else error
