"""Recover by hand: take back the tasks of dead workers now, also in queues that wait for a person."""

from typing import Any

from django.db import connection as default_connection
from django.utils.translation import gettext_lazy

from tasks.models import Task, TaskStatus
from tasks.operations.filters import TaskFilter
from tasks.operations.verb import Reason, Result, Settings, Verb
from tasks.queue import recovery
from tasks.queue.recovery import Sweep
from tasks.support import audit
from tasks.support.audit import Change, Who
from tasks.support.database import Connection

NOT_DEAD = Reason(
    "not_dead",
    gettext_lazy("its worker is not dead: not yet, or it is alive, or somebody took the task back already"),
)


class Recover(Verb):
    """Take back the selected tasks of dead workers, at once and whatever their version.

    Only the worker's death decides, and a heartbeat does not change the task's row.
    """

    name = "recover"
    label = gettext_lazy("Take back")
    right = "tasks.recover_task"
    statuses = (TaskStatus.PROCESSING,)
    words = ("recover_tasks",)

    @classmethod
    def command(cls, chosen: TaskFilter, settings: Settings) -> str:
        """The command takes no filter: it recovers from every dead worker."""
        return super().command(TaskFilter(), settings)

    def perform(self, chosen: TaskFilter) -> Result:
        ids = list(chosen.queryset().order_by("id").values_list("id", flat=True))
        sweep = recover(self.who, task_ids=ids, reason=self.settings.reason, dry_run=self.dry_run)
        done = {row["id"] for row in sweep.rows}
        left = Task.objects.in_bulk(task_id for task_id in ids if task_id not in done)
        return Result(done=sorted(done), refused={task_id: NOT_DEAD.refuse(task) for task_id, task in left.items()})


def recover(who: Who, *, reason: str = "", **how: Any) -> Sweep:
    """Take back the PROCESSING tasks of dead workers: all, at most `limit`, or those among `task_ids`.

    `how` goes to `recovery.recover`: `limit`, `task_ids` and `dry_run`.

    Each becomes READY, FAILED if no attempt is left, or CANCELLED if a cancel was requested.
    """

    def record(connection: Connection, rows: list[dict[str, Any]]) -> None:
        changes = [Change(audit.task(row["id"]), row["version_before"], row["version_after"]) for row in rows]
        audit.record(connection, who, "recover", changes, reason)

    return recovery.recover(default_connection, record=record, **how)
