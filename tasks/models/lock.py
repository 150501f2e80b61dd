"""The tables of named locks. Their rules are SQL functions (migration 0004), for programs in every language."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from tasks.support.durations import StatementTimestamp


class Lock(models.Model):
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

    class Meta:
        default_permissions = ("view",)
        permissions = [("release_lock", _("Can release locks whose holder is gone"))]
        constraints = [
            models.CheckConstraint(
                condition=Q(owner__isnull=True, expires_at__isnull=True)
                | Q(owner__isnull=False, expires_at__isnull=False, acquired_at__isnull=False),
                name="tasks_lock_held_until",
            )
        ]

    def __str__(self) -> str:
        return self.name


class LockWaiter(models.Model):
    """A current waiter for a named lock; rows of dead waiters are ignored and swept."""

    name = models.TextField()
    owner = models.TextField(unique=True)
    hostname = models.TextField(db_default="", blank=True)
    pid = models.IntegerField(null=True, blank=True)
    holds = ArrayField(models.BigIntegerField(), db_default=[], blank=True)  # fences of the locks that it holds
    since = models.DateTimeField(db_default=StatementTimestamp())

    class Meta:
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.owner} waits for {self.name}"
