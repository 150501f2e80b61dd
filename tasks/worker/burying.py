"""What a supervisor writes about the tasks of a child: given back, interrupted, or past their time."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

import psycopg

from tasks import registry, set_aside, transitions, wakeup
from tasks.database import fetch
from tasks.exceptions import TimedOut
from tasks.set_aside import Writes
from tasks.transitions import Failure
from tasks.worker import runner

TASK_PATH = "SELECT task_path FROM tasks_task WHERE id = %(id)s::bigint"
UNBEGUN = """
SELECT id FROM tasks_task
WHERE status = 'PROCESSING' AND claimed_by = %(worker_id)s::text AND id <> ALL(%(begun)s::bigint[])
"""
WAIT_FOR_NOBODY = "SET LOCAL lock_timeout = '20ms'"


def give_back(connection: psycopg.Connection, worker_id: str, unstarted: list[tuple[int, datetime]]) -> None:
    """Give back rows that have not begun, each as its id and its time of claim. Raises LockNotAvailable."""
    claimed_at = dict(unstarted)

    def release(ids: Iterable[int]) -> int:
        return transitions.release(connection, worker_id, [(id, claimed_at[id]) for id in ids])

    def work(writes: Writes) -> None:
        if writes.is_careful:
            _release(writes, list(claimed_at), release)
        else:
            _announce(writes, release(claimed_at))

    set_aside.attempt(connection, work)


def give_back_all_but(connection: psycopg.Connection, worker_id: str, begun: list[int]) -> None:
    """Give back whatever stands under this worker's id and has not begun. Raises LockNotAvailable."""

    def work(writes: Writes) -> None:
        if not writes.is_careful:
            _announce(writes, len(transitions.release_unknown(connection, worker_id, begun)))
            return
        ids = [row["id"] for row in fetch(connection, UNBEGUN, {"worker_id": worker_id, "begun": begun})]
        known = {*begun, *ids}
        _release(writes, ids, lambda part: len(transitions.release_unknown(connection, worker_id, known - {*part})))

    set_aside.attempt(connection, work)


def _release(writes: Writes, ids: list[int], release: Callable[[Sequence[int]], int]) -> None:
    """Find the rows that are locked or refused, and release the others.

    What is locked is to be tried again, so this raises LockNotAvailable. What the database refuses is left to recovery,
    which sets it aside.
    """

    def release_now(part: Sequence[int]) -> list[int]:
        with writes.connection.cursor() as cursor:
            cursor.execute(WAIT_FOR_NOBODY)
        return [release(part)]

    _announce(writes, sum(writes.for_tasks(ids, release_now)))
    for error in writes.tasks.values():
        if isinstance(error, psycopg.errors.LockNotAvailable):
            raise error


def _announce(writes: Writes, released: int) -> None:
    if released:
        wakeup.announce(writes.connection)


def interrupt(connection: psycopg.Connection, worker_id: str, task_id: int, attempt: int, cancel: bool) -> None:
    """End the attempt that ran when its child was killed by a stop or a cancel."""
    if transitions.interrupt(connection, worker_id, task_id, attempt, cancel=cancel):
        wakeup.announce(connection)


def time_out(connection: psycopg.Connection, worker_id: str, task_id: int, attempt: int, seconds: float) -> None:
    """Fail the attempt whose child was killed at the task's timeout, after so many seconds."""
    rows = fetch(connection, TASK_PATH, {"id": task_id})
    task = registry.find(rows[0]["task_path"]) if rows else None
    retry = runner.retry_seconds(task, attempt) if task else 0.0
    text = f"Ended after {seconds:.1f} s: its timeout is {task.timeout if task else '?'} s."
    failure = Failure(f"{TimedOut.__module__}.{TimedOut.__qualname__}", text, retry, outcome="timed_out")
    transitions.end_running(connection, worker_id, task_id, attempt, seconds, failure)
