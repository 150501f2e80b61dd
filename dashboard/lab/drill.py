"""The kill drill: kill a real worker with SIGKILL in the middle of a real task, and watch the row."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any
from uuid import uuid4

import psutil
import psycopg
from django.utils.translation import gettext_lazy

from dashboard import project
from dashboard.lab.schema import LabRefused
from dashboard.processes import bound
from tasks.framework.declaration import handler
from tasks.support import database
from tasks.support.database import connect_directly, fetch, session_name

# Uses the worker's reported current task, not any claimed one, so that it is killed in the middle of it.
RUNNING = """
SELECT task.id, worker.id AS worker_id
FROM tasks_worker AS worker JOIN tasks_task AS task ON task.id = worker.current_task_id
WHERE worker.stopped_at IS NULL AND worker.pid = ANY(%(pids)s::int[]) AND worker.queues = ARRAY[%(queue)s::text]
  AND task.status = 'PROCESSING' AND task.claimed_by = worker.id
"""
VICTIM_END_SECONDS = 2.0
TASK = "dashboard.tasks.survive_a_kill"


@dataclass
class Victim:
    """One `run_worker` for one queue, which takes one task at a time."""

    queue: str
    process: "subprocess.Popen[bytes]"

    @classmethod
    def start(cls, queue: str) -> "Victim":
        """Start it; call this from the main thread, because the kernel ends it with the calling thread."""
        argv = project.manage("run_worker", "--queue", queue)
        process = subprocess.Popen(
            bound([*argv, "--batch-size", "1", "-v0"], at_parents_death=signal.SIGKILL),
            env={**project.environment(), project.VICTIM: "1", "LOG_LEVEL": "ERROR"},
            stdin=subprocess.DEVNULL,
            process_group=0,
        )
        return cls(queue, process)

    def running(self, connection: psycopg.Connection) -> dict[str, Any] | None:
        """Its current task, as `id` and `worker_id`, or None."""
        pids = []
        with suppress(psutil.NoSuchProcess):
            pids = [child.pid for child in psutil.Process(self.process.pid).children()]
        return next(iter(fetch(connection, RUNNING, {"pids": pids, "queue": self.queue})), None)

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """Send SIGKILL to the supervisor and its worker at once, like a power failure."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        """Ask it to stop, and kill it after VICTIM_END_SECONDS; other workers recover its task."""
        if self.is_alive():
            self.process.terminate()
            try:
                self.process.wait(VICTIM_END_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()


NAME = "kill_drill"
QUEUE_PREFIX = "rowlock-drill-"
START_SECONDS, END_SECONDS, SAMPLE_SECONDS = 60.0, 60.0, 0.005

# The row, and the state of the killed worker, at one moment of the database's clock.
SAMPLE = """
SELECT task.status, task.version, task.attempt, task.claimed_by, clock_timestamp() AS at,
    victim.missing_since IS NOT NULL AS is_missed, victim.stopped_at IS NOT NULL AS is_convicted
FROM tasks_task AS task LEFT JOIN tasks_worker AS victim ON victim.id = %(victim)s::text
WHERE task.id = %(id)s::bigint
"""
SERVED = """
SELECT id FROM tasks_worker
WHERE stopped_at IS NULL AND queues = ARRAY[%(queue)s::text] AND id <> %(victim)s::text
"""
# States between two samples: a row can be READY for less than a millisecond.
PASSED = """
SELECT task.id, task.attempt, task.version, task.started_at, task.finished_by, lost.finished_at AS back_at
FROM tasks_task AS task JOIN tasks_attempt AS lost ON lost.task_id = task.id AND lost.outcome = 'abandoned'
WHERE task.id = %(id)s::bigint AND task.status = 'COMPLETED'
"""
FORGET = "DELETE FROM tasks_task WHERE queue_name = %(queue)s::text"
# The text of each event, by its `what`.
EVENT_TEXTS = {
    "running": gettext_lazy("A worker is in the middle of the task."),
    "killed": gettext_lazy("The worker is killed with SIGKILL, its supervisor with it."),
    "missed": gettext_lazy("Another worker sees that its presence lock is gone."),
    "convicted": gettext_lazy("A second check found the same: the worker is dead."),
    "back": gettext_lazy("Its task is READY again; the attempt is spent."),
    "taken": gettext_lazy("Another worker runs it."),
    "changed": gettext_lazy("The row changed."),
    "done": gettext_lazy("The task has come to its end."),
}

Progress = Callable[[int], bool]


@dataclass(frozen=True)
class Event:
    """One change of the row, `ms` after the kill (negative: before it); `what` comes from `what_changed`."""

    ms: int
    what: str
    status: str
    version: int
    attempt: int
    worker: str

    @property
    def text(self) -> str:
        return str(EVENT_TEXTS[self.what])


def recovered_ms(events: Iterable[Event]) -> int | None:
    """Milliseconds from the kill until the task ran again; None if it never did."""
    return next((event.ms for event in events if event.what == "taken"), None)


def kill_a_worker(progress: Progress) -> list[Event]:
    """Start a worker on its own queue, kill it in the middle of a task, and follow the row to COMPLETED.

    Raises LabRefused if a worker does not start, or the task does not end.
    """
    params: dict[str, Any] = {"queue": QUEUE_PREFIX + uuid4().hex[:8]}
    with connect_directly(session_name("lab", "drill")) as connection, ExitStack() as stack:
        stack.callback(connection.execute, FORGET, params)
        victim = Victim.start(params["queue"])
        stack.callback(victim.end)
        params["id"] = int(handler(TASK).using(queue_name=params["queue"]).enqueue().id)
        running = wait_for(lambda: victim.running(connection), "did not begin the task", progress)
        params["victim"] = running["worker_id"]
        rescuer = Victim.start(params["queue"])
        stack.callback(rescuer.end)
        wait_for(lambda: fetch(connection, SERVED, params), "did not start", progress)
        [before] = fetch(connection, SAMPLE, params)
        at = database.now(connection)
        victim.kill()
        rows = followed(connection, params, [before, {**before, "at": at, "is_killed": True}], progress)
        rows = with_missed_states(rows, fetch(connection, PASSED, params))
        return [event_of(at, old, new) for old, new in pairwise([{}, *rows])]


def wait_for(condition: Callable[[], Any], complaint: str, progress: Progress) -> Any:
    deadline = time.monotonic() + START_SECONDS
    while not (found := condition()):
        if time.monotonic() > deadline or not progress(0):
            raise LabRefused(f"The drill ended early: its worker {complaint}.")
        time.sleep(SAMPLE_SECONDS)
    return found


Row = dict[str, Any]


def followed(connection: psycopg.Connection, params: Row, rows: list[Row], progress: Progress) -> list[Row]:
    """Add each state that the row is seen in, until it ends."""
    deadline = time.monotonic() + END_SECONDS
    while rows[-1]["status"] not in ("COMPLETED", "FAILED"):
        row = {**fetch(connection, SAMPLE, params)[0], "is_killed": True}
        if any(row[name] != rows[-1][name] for name in row if name != "at"):
            rows.append(row)
        if time.monotonic() > deadline or not progress(0):
            raise LabRefused("The drill was stopped before the task had come to its end.")
        time.sleep(SAMPLE_SECONDS)
    return rows


def with_missed_states(rows: list[Row], passed: list[Row]) -> list[Row]:
    """Add the states that came and went between two samples."""
    seen, states = {row["version"] for row in rows}, []
    for task in passed:
        back = {"status": "READY", "claimed_by": None, "at": task["back_at"]}
        taken = {"status": "PROCESSING", "claimed_by": task["finished_by"], "at": task["started_at"]}
        states += [
            {**rows[-1], **back, "version": task["version"] - 2, "attempt": task["attempt"] - 1},
            {**rows[-1], **taken, "version": task["version"] - 1, "attempt": task["attempt"]},
        ]
    missed = [state for state in states if state["version"] not in seen]
    return sorted([*rows, *missed], key=lambda row: (row["version"], row["at"]))  # a version only grows


def event_of(killed_at: datetime, old: Row, new: Row) -> Event:
    ms = round(1000 * (new["at"] - killed_at).total_seconds())
    return Event(ms, what_changed(old, new), new["status"], new["version"], new["attempt"], new["claimed_by"] or "")


def what_changed(old: dict[str, Any], new: dict[str, Any]) -> str:
    """The most significant change.

    >>> what_changed({}, {"status": "PROCESSING"})
    'running'
    """
    if new["status"] != old.get("status"):
        return {"PROCESSING": "running" if not old else "taken", "READY": "back"}.get(new["status"], "done")
    if new.get("is_killed") and not old.get("is_killed"):
        return "killed"
    if new["is_convicted"] and not old["is_convicted"]:
        return "convicted"
    return "missed" if new["is_missed"] and not old["is_missed"] else "changed"
