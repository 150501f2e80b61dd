"""Edit: another queue, priority or time for waiting tasks."""

from collections.abc import Mapping
from datetime import datetime

from django.db import connection

from tasks.models import Task, TaskStatus
from tasks.operations.chunks import Code, Progress, Refusal, Result, Selection, TaskAction, go_on, perform
from tasks.queue import wakeup
from tasks.support import audit, reading
from tasks.support.audit import Change, Who
from tasks.support.database import fetch

EDIT = """
UPDATE tasks_task
SET queue_name = coalesce(%(queue_name)s::text, queue_name),
    priority = coalesce(%(priority)s::smallint, priority),
    run_after = coalesce(%(run_after)s::timestamptz, run_after),
    version = version + 1
WHERE id = ANY(%(ids)s::bigint[])
RETURNING id, version
"""


class Edit(TaskAction):
    def __init__(self, who: Who, reason: str, changes: Mapping[str, object]) -> None:
        super().__init__(who, reason)
        self.changes = changes
        self.name = " ".join(["edit", *(f"{name}={value}" for name, value in changes.items() if value is not None)])

    def refusal(self, task: Task) -> Refusal | None:
        if task.status == TaskStatus.PROCESSING:
            return Refusal.of_row(task, Code.HELD)
        if task.status != TaskStatus.READY:
            return Refusal.of_row(task, Code.FINISHED)
        return None

    def write(self, tasks: list[Task], result: Result) -> None:
        rows = fetch(connection, EDIT, {"ids": [task.id for task in tasks], **self.changes})
        after = {row["id"]: row["version"] for row in rows}
        changes = [Change(audit.task(task.id), task.version, after[task.id]) for task in tasks]
        audit.record(connection, self.who, self.name, changes, self.reason)
        wakeup.announce(connection)
        result.done += after


def edit(
    selection: Selection,
    who: Who,
    *,
    queue_name: str | None = None,
    priority: int | None = None,
    run_after: datetime | None = None,
    reason: str = "",
    versions: Mapping[int, int] | None = None,
    dry_run: bool = False,
    progress: Progress = go_on,
) -> Result:
    """Set what is not None on READY tasks: queue, priority (-100 to 100), earliest time to run.

    Raises Unreadable for an invalid name of a queue, or a queue of the demo.
    """
    changes = {
        "queue_name": None if queue_name is None else reading.destination(queue_name),
        "priority": priority,
        "run_after": run_after.isoformat() if run_after else None,
    }
    action = Edit(who, reason, changes)
    return perform(action, selection, versions=versions, dry_run=dry_run, progress=progress)
