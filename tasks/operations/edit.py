"""Edit: another queue, priority or time for waiting tasks."""

from django.db import connection
from django.utils.translation import gettext_lazy

from tasks.models import Task, TaskStatus
from tasks.operations.chunks import TaskAction
from tasks.operations.verb import AT_ONCE, FINISHED, HELD, NO_SETTINGS, Refusal, Result, Settings, Spread
from tasks.queue import wakeup
from tasks.support import reading
from tasks.support.audit import Who

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
    """Set what is not None on READY tasks: queue, priority (-100 to 100), earliest time to run.

    Raises Unreadable for an invalid name of a queue, or a queue of the demo.
    """

    name = "edit"
    label = gettext_lazy("Move")
    right = "tasks.edit_task"
    statuses = (TaskStatus.READY,)
    words = ("edit_tasks",)

    def __init__(self, who: Who, settings: Settings = NO_SETTINGS, spread: Spread = AT_ONCE) -> None:
        super().__init__(who, settings, spread)
        self.changes = {
            "queue_name": None if settings.queue_name is None else reading.destination(settings.queue_name),
            "priority": settings.priority,
            "run_after": settings.run_after.isoformat() if settings.run_after else None,
        }

    @classmethod
    def options(cls, settings: Settings) -> list[tuple[str, object]]:
        return [
            ("--set-queue", settings.queue_name),
            ("--set-priority", settings.priority),
            ("--set-run-after", settings.run_after.isoformat() if settings.run_after else None),
        ]

    def refusal(self, task: Task) -> Refusal | None:
        if task.status == TaskStatus.PROCESSING:
            return Refusal.of_row(task, HELD)
        if task.status != TaskStatus.READY:
            return Refusal.of_row(task, FINISHED)
        return None

    def write(self, tasks: list[Task], result: Result) -> None:
        changes = [f"{name}={value}" for name, value in self.changes.items() if value is not None]
        result.done += self.change(EDIT, tasks, self.changes, action=" ".join([self.name, *changes]))
        wakeup.announce(connection)


edit = Edit.act
