"""Requeue: run failed, cancelled and stale tasks again, with new attempts."""

from math import ceil
from typing import ClassVar

from django.utils.translation import gettext_lazy

from tasks import conf
from tasks.framework import declaration
from tasks.models import Task, TaskStatus
from tasks.operations.unique import make_ready
from tasks.operations.verb import COMPLETED, EXHAUSTED, Reason, Refusal, Share, Verb

MOST_ATTEMPTS = 32_767  # the column is a smallint

# A PROCESSING row's attempt is recorded: abandoned if its worker is dead, otherwise released.
REQUEUE = """
WITH chosen AS (
    SELECT id, max_attempts, delay
    FROM unnest(%(ids)s::bigint[], %(limits)s::smallint[], %(delays)s::float8[]) AS chosen (id, max_attempts, delay)
), attempt AS (
    INSERT INTO tasks_attempt (task_id, number, worker_id, outcome, exception_class, started_at, queue_name,
        fingerprint)
    SELECT task.id, task.attempt, task.claimed_by,
        CASE WHEN task.claimed_by = ANY(%(dead)s::text[]) THEN 'abandoned' ELSE 'released' END,
        CASE WHEN task.claimed_by = ANY(%(dead)s::text[]) THEN 'tasks.exceptions.Abandoned' ELSE '' END,
        task.started_at, task.queue_name,
        CASE WHEN task.claimed_by = ANY(%(dead)s::text[]) THEN
            left(encode(sha256(convert_to(concat_ws('|', task_path, 'tasks.exceptions.Abandoned', 'abandoned'),
                'UTF8')), 'hex'), 12) || ' abandoned'
            ELSE '' END
    FROM tasks_task AS task JOIN chosen ON chosen.id = task.id WHERE task.status = 'PROCESSING'
)
UPDATE tasks_task AS task
SET status = 'READY', version = task.version + 1, claimed_by = NULL, finished_at = NULL, cancel_requested_at = NULL,
    run_after = statement_timestamp() + chosen.delay * interval '1 second', max_attempts = chosen.max_attempts,
    unique_while = CASE WHEN task.unique_while = 'b' AND task.status <> 'PROCESSING' THEN 'q'
                        ELSE task.unique_while END
FROM chosen WHERE task.id = chosen.id
RETURNING task.id, task.version
"""

READY = Reason("ready", gettext_lazy("it is READY already and waits for a worker"))
LIVE = Reason("live", gettext_lazy("worker {claimed_by} is alive and works on it; let it finish, or cancel the task"))
WAITING = Reason(
    "waiting",
    gettext_lazy("worker {claimed_by} is silent and has {seconds} s left to come back; try again then"),
)


class Requeue(Verb):
    """Make FAILED, CANCELLED and stale PROCESSING tasks READY, at once or spread evenly; `attempt` stays.

    `force` takes PROCESSING tasks from live workers too: the effect may happen twice, and the worker's late write is
    refused. It needs a reason (ValueError). Takes 0.3 s longer if a worker has just died.
    """

    name = "requeue"
    label = gettext_lazy("Run again")
    right = "tasks.requeue_task"
    statuses = (TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.PROCESSING)
    words = ("requeue_tasks",)
    options: ClassVar = {"spread_minutes": "--spread"}
    reasons: ClassVar = {TaskStatus.READY: READY, TaskStatus.COMPLETED: COMPLETED}
    checks_workers = True

    def __post_init__(self) -> None:
        if self.settings.force and not self.settings.reason.strip():
            raise ValueError("Taking a task from a live worker needs a reason, which the audit keeps.")

    def refusal(self, task: Task) -> Refusal | None:
        if self.is_live(task) and not self.settings.force:
            return self._refusal_of_live(task)
        if task.status in self.statuses and task.attempt + allowance(task.task_path) > MOST_ATTEMPTS:
            return EXHAUSTED.refuse(task)
        return super().refusal(task)

    def write(self, tasks: list[Task]) -> None:
        make_ready(self, tasks, self._make_ready)

    def _make_ready(self, tasks: list[Task]) -> list[int]:
        limits = [task.attempt + allowance(task.task_path) for task in tasks]
        places = range(len(self.result.done), len(self.result.done) + len(tasks))
        delays = [self.settings.delay(place, self.share or Share(of=1)) for place in places]
        params = {"limits": limits, "delays": delays, "dead": list(self.dead)}
        done = self.change(REQUEUE, tasks, params)
        self.result.done += done
        return done

    def _refusal_of_live(self, task: Task) -> Refusal:
        state = self.waiting.get(task.claimed_by or "")
        if state is None:
            return LIVE.refuse(task)
        lease_left = state.lease_seconds - (state.heartbeat_age_seconds or 0)
        return WAITING.refuse(task, seconds=max(1, ceil(max(lease_left, state.grace_seconds))))


def allowance(task_path: str) -> int:
    """The number of new attempts for a requeued task; at least one, or every claim would fail."""
    declared = declaration.find(task_path)
    return max(1, declared.attempts_allowed() if declared else conf.get("MAX_ATTEMPTS"))


requeue = Requeue.act
