"""QuerySet adjectives for the queue's tables, so that no view or command spells a status."""

from typing import TYPE_CHECKING, Self

from django.db import models
from django.db.models import Q

from tasks.support.durations import StatementTimestamp

if TYPE_CHECKING:
    from tasks.models import Task, Worker  # noqa: F401


class TaskQuerySet(models.QuerySet["Task"]):
    """Tasks by their state; `tasks.queue.presence` decides about the workers of PROCESSING tasks."""

    def ready(self) -> Self:
        return self.filter(status="READY")

    def due(self) -> Self:
        return self.ready().filter(run_after__lte=StatementTimestamp())

    def scheduled(self) -> Self:
        return self.ready().filter(run_after__gt=StatementTimestamp())

    def processing(self) -> Self:
        return self.filter(status="PROCESSING")

    def completed(self) -> Self:
        return self.filter(status="COMPLETED")

    def failed(self) -> Self:
        return self.filter(status="FAILED")

    def cancelled(self) -> Self:
        return self.filter(status="CANCELLED")

    def finished(self) -> Self:
        return self.filter(status__in=("COMPLETED", "FAILED", "CANCELLED"))

    def unfinished(self) -> Self:
        return self.filter(status__in=("READY", "PROCESSING"))


class WorkerQuerySet(models.QuerySet["Worker"]):
    """Worker rows; a registered worker may be dead, see `tasks.queue.presence`."""

    def unstopped(self) -> Self:
        return self.filter(stopped_at__isnull=True)

    def serving(self, queue_name: str) -> Self:
        return self.unstopped().filter(Q(queues=[]) | Q(queues__contains=[queue_name]))
