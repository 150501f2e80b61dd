"""Workers, and what the decision about dead ones remembers."""

from typing import Self

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from tasks.support.durations import StatementTimestamp


class WorkerQuerySet(models.QuerySet["Worker"]):
    """Worker rows; a registered worker may be dead, see `tasks.queue.presence`."""

    def unstopped(self) -> Self:
        return self.filter(stopped_at__isnull=True)

    def serving(self, queue_name: str) -> Self:
        return self.unstopped().filter(Q(queues=[]) | Q(queues__contains=[queue_name]))


class Worker(models.Model):
    """One worker process. `id` is fresh and random for each process, never a host name."""

    id = models.TextField(primary_key=True)
    hostname = models.TextField()
    pid = models.IntegerField()
    strategy = models.TextField(db_default="skip_locked")
    queues = ArrayField(models.TextField(), db_default=[], blank=True)  # empty: every queue
    task_paths = ArrayField(models.TextField(), db_default=[], blank=True)  # task functions that it can run
    started_at = models.DateTimeField(db_default=StatementTimestamp())
    heartbeat_at = models.DateTimeField(db_default=StatementTimestamp())
    lease_seconds = models.FloatField(null=True, blank=True)  # its own lease; null: the reader's setting
    presence_epoch = models.TextField(null=True, blank=True)  # noqa: DJ001  null: presence never taken
    missing_since = models.DateTimeField(null=True, blank=True)  # first check that missed its presence
    current_task_id = models.BigIntegerField(null=True, blank=True)
    current_since = models.DateTimeField(null=True, blank=True)
    stop_requested_at = models.DateTimeField(null=True, blank=True)
    stopped_at = models.DateTimeField(null=True, blank=True)
    stop_reason = models.TextField(db_default="", blank=True)

    objects = WorkerQuerySet.as_manager()

    class Meta:
        default_permissions = ("view",)
        permissions = [("stop_worker", _("Can ask workers to stop"))]
        indexes = [models.Index(fields=["id"], condition=Q(stopped_at__isnull=True), name="tasks_worker_unstopped")]

    def __str__(self) -> str:
        return f"{self.id} ({self.hostname}, pid {self.pid})"


class Epoch(models.Model):
    """One row: the time since which the server has not lost all its sessions at once (see tasks/queue/presence.py)."""

    id = models.SmallIntegerField(primary_key=True, db_default=1)
    token = models.TextField()
    first_seen_at = models.DateTimeField()

    class Meta:
        default_permissions = ("view",)
        constraints = [models.CheckConstraint(condition=Q(id=1), name="tasks_epoch_one_row")]

    def __str__(self) -> str:
        return self.token


class RecoveryFailure(models.Model):
    """A task or worker that a sweep could not write, because the database refused it. Skipped until `retry_at`."""

    target = models.TextField(primary_key=True)  # as in the audit: task:4711 or worker:w7f
    task_id = models.BigIntegerField(null=True, blank=True)
    worker_id = models.TextField(db_default="", blank=True)  # the worker itself, or the worker that holds the task
    error = models.TextField()
    tries = models.IntegerField(db_default=1)
    since = models.DateTimeField(db_default=StatementTimestamp())
    retry_at = models.DateTimeField()

    class Meta:
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.target}: {self.error}"
