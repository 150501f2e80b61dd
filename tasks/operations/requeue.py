"""Requeue: run failed, cancelled and stale tasks again, with new attempts."""

from math import ceil

from django.db import connection
from django.utils.translation import gettext_lazy

from tasks import conf
from tasks.framework import declaration
from tasks.models import Task, TaskStatus
from tasks.operations.chunks import TaskAction
from tasks.operations.verb import (
    AT_ONCE,
    COMPLETED,
    EXHAUSTED,
    NO_SETTINGS,
    Reason,
    Refusal,
    Result,
    Settings,
    Spread,
)
from tasks.queue import wakeup
from tasks.support.audit import Who

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

READY = Reason("ready", gettext_lazy("it is READY already and waits for a worker"))
LIVE = Reason("live", gettext_lazy("worker {claimed_by} is alive and works on it; let it finish, or cancel the task"))
WAITING = Reason(
    "waiting",
    gettext_lazy("worker {claimed_by} does not answer, and has {seconds} s left to come back; try again then"),
)


class Requeue(TaskAction):
    """Make FAILED, CANCELLED and stale PROCESSING tasks READY, at once or as `spread` says; `attempt` stays.

    `force` takes PROCESSING tasks from live workers too: the effect may happen twice, and the worker's late write is
    refused. It needs a reason (ValueError). Takes 0.3 s longer if a worker has just died.
    """

    name = "requeue"
    label = gettext_lazy("Run again")
    right = "tasks.requeue_task"
    statuses = (TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.PROCESSING)
    words = ("requeue_tasks",)
    checks_workers = True

    def __init__(self, who: Who, settings: Settings = NO_SETTINGS, spread: Spread = AT_ONCE) -> None:
        super().__init__(who, settings, spread)
        if settings.force and not settings.reason.strip():
            raise ValueError("Taking a task from a live worker needs a reason, which the audit keeps.")

    @classmethod
    def options(cls, settings: Settings) -> list[tuple[str, object]]:
        return [("--spread", f"{settings.spread_minutes}m" if settings.spread_minutes else None)]

    def refusal(self, task: Task) -> Refusal | None:
        if task.status == TaskStatus.READY:
            return Refusal.of_row(task, READY)
        if task.status == TaskStatus.COMPLETED:
            return Refusal.of_row(task, COMPLETED)
        if task.status == TaskStatus.PROCESSING and not self.is_stale(task) and not self.settings.force:
            return self._refusal_of_live(task)
        if task.attempt + allowance(task.task_path) > MOST_ATTEMPTS:
            return Refusal.of_row(task, EXHAUSTED)
        return None

    def write(self, tasks: list[Task], result: Result) -> None:
        limits = [task.attempt + allowance(task.task_path) for task in tasks]
        places = range(len(result.done), len(result.done) + len(tasks))
        delays = [self.spread.delay(place) for place in places]
        result.done += self.change(REQUEUE, tasks, {"limits": limits, "delays": delays, "dead": list(self.dead)})
        wakeup.announce(connection)

    def _refusal_of_live(self, task: Task) -> Refusal:
        state = self.waiting.get(task.claimed_by or "")
        if state is None:
            return Refusal.of_row(task, LIVE)
        lease_left = state.lease_seconds - (state.heartbeat_age_seconds or 0)
        return Refusal.of_row(task, WAITING, seconds=max(1, ceil(max(lease_left, state.grace_seconds))))


def allowance(task_path: str) -> int:
    """The number of new attempts for a requeued task; at least one, or every claim would fail."""
    declared = declaration.find(task_path)
    return max(1, declared.attempts_allowed() if declared else conf.get("MAX_ATTEMPTS"))


requeue = Requeue.act
