"""Samples of who waited for whom, rights on sessions, and what pages keep: saved views, demo rows, runs of the lab."""

from typing import Any

from django.conf import settings
from django.contrib.postgres.fields import DateTimeRangeField
from django.contrib.postgres.fields.ranges import RangeBoundary
from django.contrib.postgres.indexes import GistIndex
from django.core.checks import CheckMessage
from django.db import models
from django.utils.translation import gettext_lazy as _

from tasks.models.fields import APP_IS_MISSING
from tasks.support.durations import StatementTimestamp


class Backend(models.Model):
    """A session of PostgreSQL. It has no table; it carries the permissions to see and to signal sessions."""

    class Meta:
        managed = False
        default_permissions = ("view",)
        permissions = [("signal_backend", "Can cancel and terminate database sessions")]

    def __str__(self) -> str:
        return f"backend {self.pk}"


class TsTzRange(models.Func):
    """The SQL range of two time columns and the kind of its bounds."""

    function = "tstzrange"
    output_field = DateTimeRangeField()


class TimeIndex(GistIndex):
    """Django 6 asks for the app `django.contrib.postgres`, which an index of time ranges does not use."""

    def check(self, *args: Any, **kwargs: Any) -> list[CheckMessage]:
        return [message for message in super().check(*args, **kwargs) if message.id != APP_IS_MISSING]

    def deconstruct(self) -> Any:
        """As Django's own, so that migrations see no difference."""
        _path, expressions, kwargs = super().deconstruct()
        return "django.contrib.postgres.indexes.GistIndex", expressions, kwargs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GistIndex) and self.deconstruct() == other.deconstruct()

    __hash__ = GistIndex.__hash__


class LockWait(models.Model):
    """One wait of one session for another, as sampled: who waited for whom, when, and why.

    Samples of the same wait share a `pair`. Texts are redacted and cut, and empty if the session hid its query.
    """

    pair = models.TextField(unique=True)  # both sessions with their start times, and the start of the wait
    waiting_since = models.DateTimeField()  # as the database reports it, so it may precede the first sample
    last_seen = models.DateTimeField(db_default=StatementTimestamp())
    locktype = models.TextField()
    mode = models.TextField(db_default="", blank=True)
    target = models.TextField(db_default="", blank=True)  # the row if known, else the table or the lock's name
    blocked_pid = models.IntegerField()
    blocked_who = models.TextField(db_default="", blank=True)  # application_name, or a description of the holder
    blocked_task = models.BigIntegerField(null=True, blank=True)
    blocked_query = models.TextField(db_default="", blank=True)
    blocker_pid = models.IntegerField()  # 0 or below: no session of this database
    blocker_who = models.TextField(db_default="", blank=True)
    blocker_task = models.BigIntegerField(null=True, blank=True)
    blocker_state = models.TextField(db_default="", blank=True)
    blocker_query = models.TextField(db_default="", blank=True)
    blocker_since = models.DateTimeField(null=True, blank=True)  # start of its transaction

    class Meta:
        default_permissions = ("view",)
        # A wait at 03:10 began before and ended after it, so neither end alone narrows down an old moment.
        indexes = [
            TimeIndex(
                TsTzRange("waiting_since", "last_seen", RangeBoundary(inclusive_upper=True)),
                name="dashboard_lockwait_when",
            )
        ]

    def __str__(self) -> str:
        return f"{self.blocked_pid} waits for {self.blocker_pid}"

    @property
    def seconds(self) -> float:
        """Length of the wait in seconds, as far as sampled."""
        return (self.last_seen - self.waiting_since).total_seconds()


class Deadlocks(models.Model):
    """Deadlocks since the previous sample; the first row only records the counter's start."""

    at = models.DateTimeField(db_default=StatementTimestamp(), db_index=True)
    number = models.BigIntegerField()
    total = models.BigIntegerField()  # the database's own counter, which a reset of its statistics sets back

    class Meta:
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.number} deadlocks until {self.at}"


class SavedView(models.Model):
    """A search of the list of tasks that a person keeps under a name."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    name = models.TextField()
    query = models.TextField()  # of the list's URL

    class Meta:
        default_permissions = ("view",)
        constraints = [models.UniqueConstraint(fields=["user", "name"], name="dashboard_savedview_one_of_a_name")]

    def __str__(self) -> str:
        return self.name


class DemoRow(models.Model):
    """One row that the demo made, by id or name. The demo exists while any of these rows does."""

    class Kind(models.TextChoices):
        TASK = "task"
        ORDER = "order"
        ACCOUNT = "account"  # with its entries
        USER = "user"  # the owner of an account
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
    """One run of the lab, finished or requested. Runs with the same `batch` were requested together.

    `result`: numbers of `dashboard.lab.measure.Result`; `spans`: the chart; `statements`: SQL as sent; `waits`: who
    waited for whom; `server`: the server it ran on.
    """

    class State(models.TextChoices):
        # requested → running → over, with a result or an error
        WAITING = "waiting", _("Waiting")
        RUNNING = "running", _("Running")
        FINISHED = "finished", _("Finished")
        FAILED = "failed", _("Failed")

    batch = models.TextField(db_index=True)
    pattern = models.TextField()
    plan = models.JSONField()
    state = models.TextField(choices=State, db_default=State.WAITING, default=State.WAITING)
    actor = models.TextField()
    task_id = models.BigIntegerField(null=True, blank=True)  # the task that runs the batch
    schema = models.TextField(db_default="", blank=True)  # set while it runs
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
