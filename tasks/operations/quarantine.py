"""Quarantine: harmful tasks wait in a paused queue for a person, who can put them back."""

from collections import defaultdict
from collections.abc import Mapping

from django.db import connection

from tasks.models import Intervention, Task, TaskStatus
from tasks.operations.chunks import Code, Progress, Refusal, Result, Selection, TaskAction, go_on, perform
from tasks.operations.queues import pause
from tasks.operations.requeue import MOST_ATTEMPTS, allowance
from tasks.queue import wakeup
from tasks.support import audit
from tasks.support.audit import Change, Who
from tasks.support.database import fetch

QUEUE = "quarantine"
FROM = "quarantine from="  # prefix of the intervention that stores the queue

# A FAILED row becomes READY, with new attempts, so that it can run after quarantine.
QUARANTINE = """
UPDATE tasks_task AS task
SET queue_name = %(queue)s::text, status = 'READY', version = task.version + 1, finished_at = NULL,
    cancel_requested_at = NULL, max_attempts = chosen.max_attempts,
    run_after = CASE task.status WHEN 'READY' THEN task.run_after ELSE statement_timestamp() END
FROM unnest(%(ids)s::bigint[], %(limits)s::smallint[]) AS chosen (id, max_attempts) WHERE task.id = chosen.id
RETURNING task.id, task.version
"""

PUT_BACK = """
UPDATE tasks_task AS task SET queue_name = origin.queue_name, version = task.version + 1
FROM unnest(%(ids)s::bigint[], %(names)s::text[]) AS origin (id, queue_name) WHERE task.id = origin.id
RETURNING task.id, task.version
"""


class Quarantine(TaskAction):
    name = "quarantine"

    def refusal(self, task: Task) -> Refusal | None:
        if task.status == TaskStatus.PROCESSING:
            return Refusal.of_row(task, Code.HELD)
        if task.status not in (TaskStatus.READY, TaskStatus.FAILED):
            return Refusal.of_row(task, Code.FINISHED)
        if task.queue_name == QUEUE and task.status == TaskStatus.READY:
            return Refusal.of_row(task, Code.QUARANTINED)
        if attempts_for(task) > MOST_ATTEMPTS:
            return Refusal.of_row(task, Code.EXHAUSTED)
        return None

    def write(self, tasks: list[Task], result: Result) -> None:
        params = {"queue": QUEUE, "ids": [task.id for task in tasks], "limits": list(map(attempts_for, tasks))}
        versions = {row["id"]: row["version"] for row in fetch(connection, QUARANTINE, params)}
        by_queue = defaultdict(list)
        for task in tasks:
            change = Change(audit.task(task.id), task.version, versions[task.id])
            by_queue[task.queue_name].append(change)
        for queue_name, changes in by_queue.items():
            audit.record(connection, self.who, FROM + queue_name, changes, self.reason)
        wakeup.announce(connection)  # a failed task may have blocked others of its key
        result.done += versions


class PutBack(TaskAction):
    name = "put_back"

    def refusal(self, task: Task) -> Refusal | None:
        if task.status == TaskStatus.READY and task.queue_name == QUEUE:
            return None
        return Refusal.of_row(task, Code.NOT_QUARANTINED)

    def write(self, tasks: list[Task], result: Result) -> None:
        origins = origins_of(tasks)
        known = [task for task in tasks if task.id in origins]
        result.refused |= {task.id: Refusal.of_row(task, Code.NO_ORIGIN) for task in tasks if task.id not in origins}
        params = {"ids": [task.id for task in known], "names": [origins[task.id] for task in known]}
        versions = {row["id"]: row["version"] for row in fetch(connection, PUT_BACK, params)}
        changes = [Change(audit.task(task.id), task.version, versions[task.id]) for task in known]
        audit.record(connection, self.who, self.name, changes, self.reason)
        wakeup.announce(connection)
        result.done += versions


def quarantine(
    selection: Selection,
    who: Who,
    *,
    reason: str = "",
    versions: Mapping[int, int] | None = None,
    dry_run: bool = False,
    progress: Progress = go_on,
) -> Result:
    """Move READY and FAILED tasks into the paused queue `quarantine`, as READY.

    The queue is paused first, so that none of them can be claimed on its way.
    """
    pause(QUEUE, who, reason=reason, dry_run=dry_run)
    return perform(Quarantine(who, reason), selection, versions=versions, dry_run=dry_run, progress=progress)


def put_back(
    selection: Selection,
    who: Who,
    *,
    reason: str = "",
    versions: Mapping[int, int] | None = None,
    dry_run: bool = False,
    progress: Progress = go_on,
) -> Result:
    """Move tasks of the queue `quarantine` back to their previous queue, which the audit keeps."""
    return perform(PutBack(who, reason), selection, versions=versions, dry_run=dry_run, progress=progress)


def attempts_for(task: Task) -> int:
    """The task's `max_attempts` in quarantine: its own, or with new attempts if it had failed."""
    return task.max_attempts if task.status == TaskStatus.READY else task.attempt + allowance(task.task_path)


def origins_of(tasks: list[Task]) -> dict[int, str]:
    """The previous queue of each task by id, as far as the audit has it."""
    targets = {audit.task(task.id): task.id for task in tasks}
    moves = Intervention.objects.filter(target__in=targets, action__startswith=FROM).order_by("id")
    return {targets[target]: action.removeprefix(FROM) for target, action in moves.values_list("target", "action")}
