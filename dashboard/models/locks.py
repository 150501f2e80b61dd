"""Samples of who waited for whom, and permissions on PostgreSQL's sessions, which have no table of ours."""

from typing import Any

from django.contrib.postgres.fields import DateTimeRangeField
from django.contrib.postgres.fields.ranges import RangeBoundary
from django.contrib.postgres.indexes import GistIndex
from django.core.checks import CheckMessage
from django.db import models

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
