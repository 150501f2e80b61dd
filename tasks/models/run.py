"""What people and commands did: the audit, bulk actions, submitted forms, runs of commands."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from tasks.support.durations import StatementTimestamp


class Intervention(models.Model):
    """A change by a person or a command, append-only: triggers refuse to update, delete and truncate.

    `role` is the database role that wrote the row, whatever the statement said.
    """

    at = models.DateTimeField(db_default=StatementTimestamp())
    actor = models.TextField()
    source = models.TextField()  # page or command
    action = models.TextField()
    target = models.TextField(db_index=True)
    reason = models.TextField(db_default="", blank=True)
    version_before = models.IntegerField(null=True, blank=True)
    version_after = models.IntegerField(null=True, blank=True)
    role = models.TextField(db_default="", blank=True)

    class Meta:
        default_permissions = ("view",)
        indexes = [models.Index(fields=["actor", "id"], name="tasks_intervention_actor")]

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.target}"


class BulkRun(models.Model):
    """One action on every task that matched a filter, in chunks; `cursor` is the last id done.

    `filter` is the query of the list's URL; no task above `upto`, the highest id at the preview, is touched. `refusals`
    has for each code the number of tasks, the first few ids and the sentence of the first.
    """

    action = models.TextField()
    options = models.JSONField(db_default={}, blank=True)  # settings and reason; see tasks.operations.bulk
    filter = models.TextField(blank=True)
    upto = models.BigIntegerField()
    actor = models.TextField()
    task_id = models.BigIntegerField(null=True, blank=True, db_index=True)  # the task that carries it out
    created_at = models.DateTimeField(db_default=StatementTimestamp())
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    stop_requested_at = models.DateTimeField(null=True, blank=True)
    total = models.IntegerField(null=True, blank=True)  # matching tasks at the start
    looked = models.IntegerField(db_default=0)
    done = models.IntegerField(db_default=0)
    asked = models.IntegerField(db_default=0)  # tasks whose worker was asked to end them
    refused = models.IntegerField(db_default=0)
    refusals = models.JSONField(db_default={}, blank=True)
    cursor = models.BigIntegerField(db_default=0)

    class Meta:
        default_permissions = ("view",)
        # Rights about tasks in general; the table that declares a right does not matter.
        permissions = [
            ("edit_task", "Can move tasks to another queue, priority or time"),
            ("enqueue_task", "Can enqueue tasks by hand"),
            ("run_burst", "Can start a worker on the web server's host"),
        ]

    def __str__(self) -> str:
        return f"bulk run {self.pk}: {self.action}"


class SubmittedForm(models.Model):
    """One form that was carried out, so that a second click does nothing; `target` is the result of the first."""

    token = models.TextField(primary_key=True)
    target = models.TextField(db_default="", blank=True)
    at = models.DateTimeField(db_default=StatementTimestamp(), db_index=True)

    class Meta:
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.token}: {self.target}"


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
