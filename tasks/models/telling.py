"""Progress, checkpoints and log lines of running tasks."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from tasks.models.task import Viewable
from tasks.support.durations import StatementTimestamp


class Progress(Viewable):
    """The last report of a task, and the checkpoint that its next attempt finds.

    No foreign key: checking one would lock the task's row, and so wait for whoever holds it. A trigger deletes the
    reports of deleted tasks (migration 0003).
    """

    task_id = models.BigIntegerField(primary_key=True)
    attempt = models.SmallIntegerField()  # the one that reported last
    fraction = models.FloatField(null=True, blank=True)  # 0 to 1; null: only a checkpoint so far
    message = models.TextField(db_default="", blank=True)
    state = models.JSONField(null=True, blank=True)
    first_fraction = models.FloatField(null=True, blank=True)  # of this attempt, as its rate counts from there
    first_at = models.DateTimeField(null=True, blank=True)
    updated_at = models.DateTimeField(db_default=StatementTimestamp())

    class Meta(Viewable.Meta):
        verbose_name_plural = _("progress")
        constraints = [
            models.CheckConstraint(
                condition=models.Q(fraction__isnull=True) | models.Q(fraction__gte=0, fraction__lte=1),
                name="tasks_progress_fraction_in_range",
            )
        ]

    def __str__(self) -> str:
        return f"#{self.task_id}: {self.fraction} {self.message}"


class AttemptLog(Viewable):
    """One line that a handler logged. Of each attempt the latest 200 are kept."""

    task_id = models.BigIntegerField()
    number = models.SmallIntegerField()  # of the attempt
    at = models.DateTimeField()
    level = models.TextField()  # as Python names it: INFO
    message = models.TextField()

    class Meta(Viewable.Meta):
        db_table = "tasks_attemptlog"
        indexes = [models.Index(fields=["task_id", "number", "id"], name="tasks_attemptlog_of_attempt")]

    def __str__(self) -> str:
        return f"#{self.task_id}, attempt {self.number}: {self.level} {self.message}"
