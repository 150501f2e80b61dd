"""Edit: another queue, priority or time for waiting tasks."""

from typing import ClassVar

from django.utils.translation import gettext_lazy

from tasks.models import Task, TaskStatus
from tasks.operations.verb import Verb
from tasks.support import reading

EDIT = """
UPDATE tasks_task
SET queue_name = coalesce(%(queue_name)s::text, queue_name),
    priority = coalesce(%(priority)s::smallint, priority),
    run_after = coalesce(%(run_after)s::timestamptz, run_after),
    version = version + 1
WHERE id = ANY(%(ids)s::bigint[])
RETURNING id, version
"""


class Edit(Verb):
    """Set what is not None on READY tasks: queue, priority (-100 to 100), earliest time to run.

    Raises Unreadable for an invalid name of a queue, or a queue of the demo.
    """

    name = "edit"
    label = gettext_lazy("Move")
    right = "tasks.edit_task"
    statuses = (TaskStatus.READY,)
    words = ("edit_tasks",)
    options: ClassVar = {"queue_name": "--set-queue", "priority": "--set-priority", "run_after": "--set-run-after"}

    def __post_init__(self) -> None:
        if self.settings.queue_name is not None:
            reading.destination(self.settings.queue_name)

    def write(self, tasks: list[Task]) -> None:
        values = self.settings.as_json()
        changes = {name: values[name] for name in self.options}
        action = [self.name, *(f"{name}={value}" for name, value in changes.items() if value is not None)]
        self.result.done += self.change(EDIT, tasks, changes, action=" ".join(action))


edit = Edit.act
