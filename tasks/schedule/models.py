"""The tables of commands that cron runs: each run, and the interval in which runs are expected."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from tasks.clock import StatementTimestamp


class CommandRun(models.Model):
    """One run of a command under a named lock, or one that was skipped because the lock was held."""

    class Outcome(models.TextChoices):
        RUNNING = "running", _("Running")
        SUCCEEDED = "succeeded", _("Succeeded")  # exit status 0
        FAILED = "failed", _("Failed")  # any other exit status
        SKIPPED = "skipped", _("Skipped")  # another holder had the lock
        SIGNALLED = "signalled", _("Signalled")  # ended by a signal
        LOST = "lost", _("Lock lost")  # stopped, because the lock was lost
        ABANDONED = "abandoned", _("Abandoned")  # its `run_locked` died; the next one noticed

    name = models.TextField()
    argv = ArrayField(models.TextField())  # secrets redacted
    hostname = models.TextField(db_default="", blank=True)
    pid = models.IntegerField(null=True, blank=True)
    fence = models.BigIntegerField(null=True, blank=True)  # null when skipped
    held_by = models.TextField(db_default="", blank=True)  # the lock's holder, when skipped
    started_at = models.DateTimeField(db_default=StatementTimestamp())
    finished_at = models.DateTimeField(null=True, blank=True)
    exit_status = models.IntegerField(null=True, blank=True)
    outcome = models.TextField(choices=Outcome, db_default=Outcome.RUNNING)
    output = models.TextField(db_default="", blank=True)  # head and tail, secrets of argv redacted

    class Meta:
        default_permissions = ("view",)
        indexes = [
            models.Index(F("name"), F("id").desc(), name="tasks_commandrun_latest"),
            models.Index(fields=["name"], condition=Q(outcome="running"), name="tasks_commandrun_running"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(outcome="running", finished_at__isnull=True)
                | Q(~Q(outcome="running"), finished_at__isnull=False),
                name="tasks_commandrun_finished",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name}: {self.outcome}"


class ExpectedCommand(models.Model):
    """A command that must run once in each interval, so that a cron that silently stopped is noticed."""

    name = models.TextField(primary_key=True)
    every = models.DurationField()
    since = models.DateTimeField(db_default=StatementTimestamp())  # first expected
    succeeded_at = models.DateTimeField(null=True, blank=True)  # the start of the latest run that succeeded

    class Meta:
        default_permissions = ("view",)
        permissions = [("forget_command", _("Can stop expecting a command"))]

    def __str__(self) -> str:
        return self.name
