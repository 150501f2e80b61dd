"""What the pages keep of their own, and rights on what is no table of ours: the sessions of the database."""

from django.contrib.postgres.fields import DateTimeRangeField
from django.contrib.postgres.fields.ranges import RangeBoundary
from django.contrib.postgres.indexes import GistIndex
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from tasks.clock import StatementTimestamp


class Backend(models.Model):
    """A session of PostgreSQL. It has no table; it exists for the rights to see and to signal such sessions."""

    class Meta:
        managed = False
        default_permissions = ("view",)
        permissions = [("signal_backend", "Can cancel and terminate database sessions")]

    def __str__(self) -> str:
        return f"backend {self.pk}"


class Acknowledgement(models.Model):
    """A line of "Needs attention" that somebody knows of: shown folded until a time, or until it grows.

    `size` is how many things the line was about when it was acknowledged; null when growth does not wake it.
    """

    line = models.TextField(primary_key=True)  # the key of the line, as its source named it
    text = models.TextField(db_default="", blank=True)  # what it said then
    actor = models.TextField()
    reason = models.TextField()
    at = models.DateTimeField(db_default=StatementTimestamp())
    until = models.DateTimeField(null=True, blank=True)
    size = models.BigIntegerField(null=True, blank=True)

    class Meta:
        default_permissions = ("view",)
        permissions = [("acknowledge", _("Can acknowledge what needs attention"))]
        constraints = [
            # One for ever would hide the next trouble of the same name.
            models.CheckConstraint(
                condition=Q(until__isnull=False) | Q(size__isnull=False), name="dashboard_acknowledgement_ends"
            )
        ]

    def __str__(self) -> str:
        return self.line


class TsTzRange(models.Func):
    """A range of time, as PostgreSQL makes it of two columns and the kind of its ends."""

    function = "tstzrange"
    output_field = DateTimeRangeField()


class LockWait(models.Model):
    """One wait of one session for another, as the sampler saw it: who waited for whom, from when to when, and why.

    Samples of one wait meet under `pair`. Texts are redacted and cut; a session that hid itself has none.
    """

    pair = models.TextField(unique=True)  # both sessions with their starts, and since when it waits
    waiting_since = models.DateTimeField()  # as the database tells it: before the first sample
    last_seen = models.DateTimeField(db_default=StatementTimestamp())
    locktype = models.TextField()
    mode = models.TextField(db_default="", blank=True)
    target = models.TextField(db_default="", blank=True)  # the row where it is known, else the table or the name
    blocked_pid = models.IntegerField()
    blocked_who = models.TextField(db_default="", blank=True)  # its application_name; of an outsider, who it is
    blocked_task = models.BigIntegerField(null=True, blank=True)
    blocked_query = models.TextField(db_default="", blank=True)
    blocker_pid = models.IntegerField()  # 0 or below: no session of this database
    blocker_who = models.TextField(db_default="", blank=True)
    blocker_task = models.BigIntegerField(null=True, blank=True)
    blocker_state = models.TextField(db_default="", blank=True)
    blocker_query = models.TextField(db_default="", blank=True)
    blocker_since = models.DateTimeField(null=True, blank=True)  # its transaction's start

    class Meta:
        default_permissions = ("view",)
        # What went on at 03:10 began before and ended after: neither end alone would narrow an old moment down.
        indexes = [
            GistIndex(
                TsTzRange("waiting_since", "last_seen", RangeBoundary(inclusive_upper=True)),
                name="dashboard_lockwait_when",
            )
        ]

    def __str__(self) -> str:
        return f"{self.blocked_pid} waits for {self.blocker_pid}"

    @property
    def seconds(self) -> float:
        """How long it waited, as far as the samples tell."""
        return (self.last_seen - self.waiting_since).total_seconds()


class Deadlocks(models.Model):
    """How many deadlocks the database broke since the sampler's look before; the first row only says where it began."""

    at = models.DateTimeField(db_default=StatementTimestamp(), db_index=True)
    number = models.BigIntegerField()
    total = models.BigIntegerField()  # the database's own counter, which a reset of its statistics sets back

    class Meta:
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.number} deadlocks until {self.at}"


class DemoRow(models.Model):
    """One row that the demo made, by its id or its name. The demo is there while any of these is."""

    class Kind(models.TextChoices):
        TASK = "task"
        ORDER = "order"
        QUEUE = "queue"  # its setting and its figures
        COMMAND = "command"  # its expectation and its runs

    kind = models.TextField(choices=Kind)
    row_id = models.BigIntegerField(db_default=0)
    name = models.TextField(db_default="", blank=True)

    class Meta:
        default_permissions = ("view",)
        permissions = [("direct_demo", _("Can direct and remove the demo"))]
        constraints = [models.UniqueConstraint(fields=["kind", "row_id", "name"], name="dashboard_demorow_once")]

    def __str__(self) -> str:
        return f"{self.kind} {self.name or self.row_id}"


class LabRun(models.Model):
    """One run of the lab, or one that was asked for. Runs with the same `batch` were asked for together.

    `result` holds the numbers of `dashboard.lab.measure.Result`, `spans` the picture, `statements` the SQL as sent,
    `waits` who waited for whom, `server` what it ran on.
    """

    class State(models.TextChoices):
        # asked for → its turn came → over, with numbers or with an error
        WAITING = "waiting", _("Waiting")
        RUNNING = "running", _("Running")
        FINISHED = "finished", _("Finished")
        FAILED = "failed", _("Failed")

    batch = models.TextField(db_index=True)
    pattern = models.TextField()
    plan = models.JSONField()
    state = models.TextField(choices=State, db_default=State.WAITING, default=State.WAITING)
    actor = models.TextField()
    task_id = models.BigIntegerField(null=True, blank=True)  # the task that carries out the batch
    schema = models.TextField(db_default="", blank=True)  # while it runs
    effects = models.IntegerField(db_default=0)
    error = models.TextField(db_default="", blank=True)
    result = models.JSONField(null=True, blank=True)
    spans = models.JSONField(null=True, blank=True)
    statements = models.JSONField(null=True, blank=True)
    waits = models.JSONField(null=True, blank=True)
    server = models.TextField(db_default="", blank=True)
    created_at = models.DateTimeField(db_default=StatementTimestamp())
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    stop_requested_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        default_permissions = ("view",)
        permissions = [("run_pattern", _("Can run patterns in the lab"))]

    def __str__(self) -> str:
        return f"run {self.pk} of {self.pattern}"
