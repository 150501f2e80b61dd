"""Finished tasks that have left the queue's table."""

from django.db import models

from tasks.models.task import Attempt, Task, TaskColumns
from tasks.models.worker import AttemptLog

# Columns that jsonb has and the table does not are left out; those that it lacks are null.
ATTEMPTS = """
SELECT attempt.* FROM tasks_archive AS task, jsonb_populate_recordset(NULL::tasks_attempt, task.attempts) AS attempt
WHERE task.id = %(id)s::bigint AND task.finished_at = %(finished_at)s::timestamptz
ORDER BY attempt.id DESC LIMIT %(limit)s::int
"""
LINES = """
SELECT line.* FROM tasks_archive AS task, jsonb_populate_recordset(NULL::tasks_attemptlog, task.log) AS line
WHERE task.id = %(id)s::bigint AND task.finished_at = %(finished_at)s::timestamptz
ORDER BY line.at DESC, line.id DESC LIMIT %(limit)s::int
"""


class ArchivedTask(TaskColumns):
    """A finished task in the archive, which is partitioned by the month of `finished_at` in UTC (migration 0005).

    Its attempts and log lines are columns of its row, so that they go with its month.
    """

    id = models.BigIntegerField(primary_key=True)
    finished_at = models.DateTimeField()
    archived_at = models.DateTimeField()

    class Meta:
        managed = False
        db_table = "tasks_archive"
        default_permissions = ()  # who sees tasks sees these

    @classmethod
    def find(cls, task_id: int) -> "ArchivedTask | None":
        """The archived task with this id."""
        return cls._default_manager.filter(pk=task_id).first()

    def as_task(self) -> Task:
        """The task as it was, to be read like any other; it has no row to be saved to."""
        return Task(**{field.attname: getattr(self, field.attname) for field in Task._meta.concrete_fields})

    def attempts(self, limit: int) -> list[Attempt]:
        """Its latest attempts, newest first."""
        return list(Attempt.objects.raw(ATTEMPTS, self._row(limit)))

    def lines(self, limit: int) -> list[AttemptLog]:
        """The latest lines that its attempts logged, the newest at the end."""
        return list(AttemptLog.objects.raw(LINES, self._row(limit)))[::-1]

    def _row(self, limit: int) -> dict[str, object]:
        return {"id": self.pk, "finished_at": self.finished_at, "limit": limit}


def find_task(task_id: int) -> tuple[Task | None, ArchivedTask | None]:
    """The task with this id, and its row in the archive if it is there."""
    if task := Task.objects.filter(pk=task_id).first():
        return task, None
    archived = ArchivedTask.find(task_id)
    return (archived.as_task(), archived) if archived else (None, None)
