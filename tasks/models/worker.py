"""Workers, what the decision about dead ones remembers, how much work was done, and reports of running tasks."""

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from tasks.models.fields import ArrayField
from tasks.models.task import Viewable
from tasks.support.durations import StatementTimestamp


class Worker(Viewable):
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
    running_ids = ArrayField(models.BigIntegerField(), db_default=[], blank=True)  # tasks that run, longest first
    current_task_id = models.BigIntegerField(null=True, blank=True)  # the first of them
    current_since = models.DateTimeField(null=True, blank=True)
    stop_requested_at = models.DateTimeField(null=True, blank=True)
    stopped_at = models.DateTimeField(null=True, blank=True)
    stop_reason = models.TextField(db_default="", blank=True)

    class Meta(Viewable.Meta):
        permissions = [("stop_worker", _("Can ask workers to stop"))]
        indexes = [models.Index(fields=["id"], condition=Q(stopped_at__isnull=True), name="tasks_worker_unstopped")]

    def __str__(self) -> str:
        return f"{self.id} ({self.hostname}, pid {self.pid})"


class Epoch(Viewable):
    """One row: the time since which the server has not lost all its sessions at once (see tasks/queue/presence.py)."""

    id = models.SmallIntegerField(primary_key=True, db_default=1)
    token = models.TextField()
    first_seen_at = models.DateTimeField()

    class Meta(Viewable.Meta):
        constraints = [models.CheckConstraint(condition=Q(id=1), name="tasks_epoch_one_row")]


class RecoveryFailure(Viewable):
    """A task or worker that a sweep could not write, because the database refused it. Skipped until `retry_at`."""

    target = models.TextField(primary_key=True)  # as in the audit: task:4711 or worker:w7f
    task_id = models.BigIntegerField(null=True, blank=True)
    worker_id = models.TextField(db_default="", blank=True)  # the worker itself, or the worker that holds the task
    error = models.TextField()
    tries = models.IntegerField(db_default=1)
    since = models.DateTimeField(db_default=StatementTimestamp())
    retry_at = models.DateTimeField()


class Throughput(Viewable):
    """Finished attempts per minute, queue and shard, written with the flush that finished them."""

    minute = models.DateTimeField()
    queue_name = models.TextField()
    shard = models.SmallIntegerField()  # spreads the workers, so that they do not wait for one row
    completed = models.IntegerField(db_default=0)
    failed = models.IntegerField(db_default=0)
    run_ms = models.BigIntegerField(db_default=0)  # summed over the attempts
    wait_ms = models.BigIntegerField(db_default=0)  # from due to started, summed
    # Of completed ones; see tasks/queue/throughput.py.
    run_buckets = ArrayField(models.IntegerField(), db_default=[], blank=True)
    wait_buckets = ArrayField(models.IntegerField(), db_default=[], blank=True)

    class Meta(Viewable.Meta):
        constraints = [models.UniqueConstraint(fields=["minute", "queue_name", "shard"], name="tasks_throughput_row")]


class ThroughputTotal(Viewable):
    """The sum of a queue's minutes in `tasks_throughput` up to `folded_until`, kept for ever."""

    queue_name = models.TextField(primary_key=True)
    folded_until = models.DateTimeField()
    completed = models.BigIntegerField(db_default=0)
    failed = models.BigIntegerField(db_default=0)
    run_ms = models.BigIntegerField(db_default=0)
    wait_ms = models.BigIntegerField(db_default=0)
    run_buckets = ArrayField(models.BigIntegerField(), db_default=[], blank=True)
    wait_buckets = ArrayField(models.BigIntegerField(), db_default=[], blank=True)


class ThroughputSlot(Viewable):
    """The sum of one queue's minutes in the half hour from `at`; kept as long as a chart needs it.

    It has a minute's columns, so that queries can read both together.
    """

    at = models.DateTimeField()
    queue_name = models.TextField()
    completed = models.IntegerField(db_default=0)
    failed = models.IntegerField(db_default=0)
    run_buckets = ArrayField(models.IntegerField(), db_default=[], blank=True)
    wait_buckets = ArrayField(models.IntegerField(), db_default=[], blank=True)

    class Meta(Viewable.Meta):
        constraints = [models.UniqueConstraint(fields=["at", "queue_name"], name="tasks_throughputslot_row")]


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
