"""Requeue: run failed, cancelled and stale tasks again, with new attempts."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from django.db import connection

from tasks import conf
from tasks.framework import declaration
from tasks.models import Task, TaskStatus
from tasks.operations.chunks import Code, Progress, Refusal, Result, Selection, TaskAction, go_on, perform
from tasks.operations.filters import TaskFilter
from tasks.queue import wakeup
from tasks.support import audit
from tasks.support.audit import Change, Who
from tasks.support.database import fetch

MOST_ATTEMPTS = 32_767  # the column is a smallint

# A PROCESSING row's attempt is recorded: abandoned if its worker is dead, otherwise released.
REQUEUE = """
WITH chosen AS (
    SELECT id, max_attempts, delay
    FROM unnest(%(ids)s::bigint[], %(limits)s::smallint[], %(delays)s::float8[]) AS chosen (id, max_attempts, delay)
), attempt AS (
    INSERT INTO tasks_attempt (task_id, number, worker_id, outcome, exception_class, started_at)
    SELECT task.id, task.attempt, task.claimed_by,
        CASE WHEN task.claimed_by = ANY(%(dead)s::text[]) THEN 'abandoned' ELSE 'released' END,
        CASE WHEN task.claimed_by = ANY(%(dead)s::text[]) THEN 'tasks.exceptions.Abandoned' ELSE '' END,
        task.started_at
    FROM tasks_task AS task JOIN chosen ON chosen.id = task.id WHERE task.status = 'PROCESSING'
)
UPDATE tasks_task AS task
SET status = 'READY', version = task.version + 1, claimed_by = NULL, finished_at = NULL, cancel_requested_at = NULL,
    run_after = statement_timestamp() + chosen.delay * interval '1 second', max_attempts = chosen.max_attempts
FROM chosen WHERE task.id = chosen.id
RETURNING task.id, task.version
"""


@dataclass(frozen=True)
class Spread:
    """Makes `of` tasks due one by one, evenly over `seconds`.

    In an action of several chunks, `first` counts the earlier tasks and `elapsed_seconds` the time since the start. So
    all chunks keep one schedule.
    """

    seconds: float
    of: int
    first: int = 0
    elapsed_seconds: float = 0.0

    def delay(self, place: int) -> float:
        """Seconds from now until the task at this place (from 0) is due.

        >>> [Spread(60, of=3).delay(place) for place in range(3)]
        [0.0, 20.0, 40.0]
        """
        return max(0.0, self.seconds * (self.first + place) / max(1, self.of) - self.elapsed_seconds)


AT_ONCE = Spread(0, of=1)


class Requeue(TaskAction):
    name = "requeue"

    def __init__(self, who: Who, reason: str, *, force: bool, spread: Spread = AT_ONCE) -> None:
        super().__init__(who, reason)
        self.force = force
        self.spread = spread

    def refusal(self, task: Task) -> Refusal | None:
        if task.status == TaskStatus.READY:
            return Refusal.of_row(task, Code.READY)
        if task.status == TaskStatus.COMPLETED:
            return Refusal.of_row(task, Code.COMPLETED)
        if task.status == TaskStatus.PROCESSING and not self.is_stale(task) and not self.force:
            return self._refusal_of_live(task)
        if task.attempt + allowance(task.task_path) > MOST_ATTEMPTS:
            return Refusal.of_row(task, Code.EXHAUSTED)
        return None

    def write(self, tasks: list[Task], result: Result) -> None:
        limits = [task.attempt + allowance(task.task_path) for task in tasks]
        places = range(len(result.done), len(result.done) + len(tasks))
        delays = [self.spread.delay(place) for place in places]
        params = {"ids": [task.id for task in tasks], "limits": limits, "delays": delays, "dead": list(self.dead)}
        versions = {row["id"]: row["version"] for row in fetch(connection, REQUEUE, params)}
        changes = [Change(audit.task(task.id), task.version, versions[task.id]) for task in tasks]
        audit.record(connection, self.who, self.name, changes, self.reason)
        wakeup.announce(connection)
        result.done += versions

    def _refusal_of_live(self, task: Task) -> Refusal:
        state = self.waiting.get(task.claimed_by or "")
        if state is None:
            return Refusal.of_row(task, Code.LIVE)
        lease_left = state.lease_seconds - (state.heartbeat_age_seconds or 0)
        return Refusal.of_row(task, Code.WAITING, seconds=max(1, ceil(max(lease_left, state.grace_seconds))))


def requeue(
    selection: Selection,
    who: Who,
    *,
    reason: str = "",
    versions: Mapping[int, int] | None = None,
    force: bool = False,
    spread: Spread = AT_ONCE,
    dry_run: bool = False,
    progress: Progress = go_on,
) -> Result:
    """Make FAILED, CANCELLED and stale PROCESSING tasks READY, at once or as `spread` says; `attempt` stays.

    `force` takes PROCESSING tasks from live workers too: the effect may happen twice, and the worker's late write is
    refused. It needs a reason (ValueError). Takes 0.3 s longer if a worker has just died.
    """
    if force and not reason.strip():
        raise ValueError("Taking a task from a live worker needs a reason, which the audit keeps.")
    action = Requeue(who, reason, force=force, spread=spread)
    chosen = TaskFilter.of(selection)
    action.look_for_dead(chosen.queryset(), dry_run=dry_run)
    return perform(action, chosen, versions=versions, dry_run=dry_run, progress=progress)


def allowance(task_path: str) -> int:
    """The number of new attempts for a requeued task; at least one, or every claim would fail."""
    declared = declaration.find(task_path)
    return max(1, declared.attempts_allowed() if declared else conf.get("MAX_ATTEMPTS"))
