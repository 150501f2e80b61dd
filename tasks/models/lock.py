"""Named locks, and the commands that run under them.

The rules of the locks are SQL functions (migration 0004), for programs in every language.
"""

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from tasks.models.fields import ArrayField
from tasks.models.task import Viewable
from tasks.support.durations import StatementTimestamp


class Lock(Viewable):
    """A named lock and its holder, or its last holder while `owner` is null."""

    name = models.TextField(primary_key=True)
    owner = models.TextField(null=True, blank=True)  # noqa: DJ001  null: free
    fence = models.BigIntegerField(db_default=0)  # drawn from one sequence, so it outlives the row
    backend = models.TextField(db_default="lease")  # lease or advisory
    hostname = models.TextField(db_default="", blank=True)
    pid = models.IntegerField(null=True, blank=True)
    acquired_at = models.DateTimeField(null=True, blank=True)
    renewed_at = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    released_at = models.DateTimeField(null=True, blank=True)
    presence_epoch = models.TextField(null=True, blank=True)  # noqa: DJ001  null: the holder has no visible session

    class Meta(Viewable.Meta):
        permissions = [("release_lock", _("Can release locks whose holder is gone"))]
        constraints = [
            models.CheckConstraint(
                condition=Q(owner__isnull=True, expires_at__isnull=True)
                | Q(owner__isnull=False, expires_at__isnull=False, acquired_at__isnull=False),
                name="tasks_lock_held_until",
            )
        ]


class LockWaiter(Viewable):
    """A current waiter for a named lock; rows of dead waiters are ignored and swept."""

    name = models.TextField()
    owner = models.TextField(unique=True)
    hostname = models.TextField(db_default="", blank=True)
    pid = models.IntegerField(null=True, blank=True)
    holds = ArrayField(models.BigIntegerField(), db_default=[], blank=True)  # fences of the locks that it holds
    since = models.DateTimeField(db_default=StatementTimestamp())


class CommandRun(Viewable):
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

    class Meta(Viewable.Meta):
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

    @property
    def outcome_words(self) -> str:
        """The outcome with the exit status of a failure: "Failed (exit 4)"."""
        words = str(self.Outcome(self.outcome).label)
        if not self.exit_status or self.outcome == self.Outcome.SKIPPED:
            return words
        return str(_("%(outcome)s (exit %(status)d)") % {"outcome": words, "status": self.exit_status})


class ExpectedCommand(Viewable):
    """A command that must run once in each interval, so that a cron that silently stopped is noticed."""

    name = models.TextField(primary_key=True)
    every = models.DurationField()
    since = models.DateTimeField(db_default=StatementTimestamp())  # first expected
    succeeded_at = models.DateTimeField(null=True, blank=True)  # the start of the latest run that succeeded

    class Meta(Viewable.Meta):
        permissions = [("forget_command", _("Can stop expecting a command"))]
