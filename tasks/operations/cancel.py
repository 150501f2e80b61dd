"""Cancel: idle tasks at once; for a running task its worker is asked to end it."""

import time
from typing import ClassVar

from django.db import connection, transaction
from django.utils.translation import gettext_lazy

from tasks.locking import rowlocks
from tasks.models import Task, TaskStatus
from tasks.operations.filters import TaskFilter, among
from tasks.operations.verb import COMPLETED, LOCKED, Progress, Reason, Result, Settings, Verb, go_on
from tasks.queue import wakeup
from tasks.support import audit
from tasks.support.audit import Change, Who
from tasks.support.database import session_name

POLL_SECONDS = 0.1
FAILED = Reason("failed", gettext_lazy("it failed for good before its worker could end it"))
ALREADY = Reason("already", gettext_lazy("it was cancelled before"))
ENDED_OTHERWISE: dict[str, Reason] = {TaskStatus.COMPLETED: COMPLETED, TaskStatus.FAILED: FAILED}

CANCEL = """
WITH attempt AS (
    INSERT INTO tasks_attempt (task_id, number, worker_id, outcome, exception_class, started_at, queue_name,
        fingerprint)
    SELECT id, attempt, claimed_by, 'abandoned', 'tasks.exceptions.Abandoned', started_at, queue_name,
        left(encode(sha256(convert_to(concat_ws('|', task_path, 'tasks.exceptions.Abandoned', 'abandoned'), 'UTF8')),
            'hex'), 12) || ' abandoned'
    FROM tasks_task WHERE id = ANY(%(ids)s::bigint[]) AND status = 'PROCESSING'
)
UPDATE tasks_task
SET status = 'CANCELLED', version = version + 1, claimed_by = NULL, finished_at = statement_timestamp()
WHERE id = ANY(%(ids)s::bigint[])
RETURNING id, version
"""

# A second request must not move the time of the first, which the page shows.
ASK = """
UPDATE tasks_task SET cancel_requested_at = statement_timestamp(), version = version + 1
WHERE id = ANY(%(ids)s::bigint[]) AND cancel_requested_at IS NULL
RETURNING id, version
"""


class Cancel(Verb):
    """Cancel unfinished and FAILED tasks: at once, unless a live worker holds them.

    Tasks that are held end up in `asked`: their worker ends them within moments, see `await_cancelled`.
    """

    name = "cancel"
    label = gettext_lazy("Cancel")
    right = "tasks.cancel_task"
    statuses = (TaskStatus.READY, TaskStatus.PROCESSING, TaskStatus.FAILED)
    words = ("cancel_tasks",)
    reasons: ClassVar = {TaskStatus.COMPLETED: COMPLETED, TaskStatus.CANCELLED: ALREADY}
    checks_workers = True

    def write(self, tasks: list[Task]) -> None:
        idle = [task for task in tasks if not self.is_live(task)]
        running = [task for task in tasks if self.is_live(task)]
        if idle:
            self.result.done += self.change(CANCEL, idle)
        if running:
            self.change(ASK, running, action=f"{self.name} requested")
            wakeup.summon(connection)
        self.result.asked += [task.id for task in running]

    def perform(self, chosen: TaskFilter) -> Result:
        result = super().perform(chosen)
        if not self.dry_run:
            self._ask_workers_that_lock()
        return result

    def _ask_workers_that_lock(self) -> None:
        """Ask the workers whose own transaction locks the row that they run (the pessimistic strategy)."""
        refused = self.result.refused
        locked = [task_id for task_id, refusal in refused.items() if refusal.code == LOCKED.code]
        tasks = {task.id: task for task in Task.objects.processing().filter(among(locked))} if locked else {}
        own = []
        for task_id, lock in rowlocks.lockers(Task, tasks).items():
            task = tasks[task_id]
            names = {locker.application_name for locker in lock.lockers}
            is_as_seen = self.versions is None or self.versions[task_id] == task.version
            if is_as_seen and session_name("worker", task.claimed_by or "") in names:
                own.append(task)
        if not own:
            return
        with transaction.atomic():
            changes = [Change(audit.task(task.id), task.version, task.version) for task in own]
            audit.record(connection, self.who, f"{self.name} requested", changes, self.settings.reason)
            wakeup.ask_to_end(connection, [task.id for task in own])
        for task in own:
            del refused[task.id]
            self.result.asked.append(task.id)


cancel = Cancel.act


def await_cancelled(result: Result, who: Who, *, seconds: float, reason: str = "", progress: Progress = go_on) -> None:
    """Move the tasks in `result.asked` into `done` or `refused`, waiting for at most `seconds`.

    If a worker dies meanwhile, or gives its task back, the task is cancelled here.
    """
    deadline = time.monotonic() + seconds
    while _sort_ended(result) and time.monotonic() < deadline and progress(len(result.done), len(result.asked)):
        time.sleep(POLL_SECONDS)
    if result.asked:
        again = cancel(result.asked, who, Settings(reason=reason))
        result.done += again.done
        result.refused |= again.refused
        result.asked = again.asked


def _sort_ended(result: Result) -> bool:
    """Sort the asked tasks that have ended; True while a live worker still runs one of them."""
    rows = {task.id: task for task in Task.objects.filter(among(result.asked))}
    for task in rows.values():
        if task.status == TaskStatus.CANCELLED:
            result.done.append(task.id)
        elif task.status in ENDED_OTHERWISE:
            result.refused[task.id] = ENDED_OTHERWISE[task.status].refuse(task)
    result.asked = [id for id, task in rows.items() if task.status in (TaskStatus.READY, TaskStatus.PROCESSING)]
    return any(rows[id].status == TaskStatus.PROCESSING for id in result.asked)
