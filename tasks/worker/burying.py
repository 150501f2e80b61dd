"""What a supervisor writes about the tasks of a child: given back, interrupted, or past their time."""

from datetime import datetime

import psycopg

from tasks import registry, transitions, wakeup
from tasks.database import fetch
from tasks.exceptions import TimedOut
from tasks.transitions import Failure
from tasks.worker import runner

TASK_PATH = "SELECT task_path FROM tasks_task WHERE id = %(id)s::bigint"


def give_back(connection: psycopg.Connection, worker_id: str, unstarted: list[tuple[int, datetime]]) -> None:
    """Give back rows that have not begun, each as its id and its time of claim."""
    if transitions.release(connection, worker_id, unstarted):
        wakeup.announce(connection)


def give_back_all_but(connection: psycopg.Connection, worker_id: str, begun: list[int]) -> None:
    """Give back whatever stands under this worker's id and is not among the ids that have begun."""
    if transitions.release_unknown(connection, worker_id, begun):
        wakeup.announce(connection)


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
