"""How many tasks finished, per minute and summed up."""

from django.contrib.postgres.fields import ArrayField
from django.db import models


class Throughput(models.Model):
    """Finished attempts per minute, queue and shard, written with the flush that finished them."""

    minute = models.DateTimeField()
    queue_name = models.TextField()
    shard = models.SmallIntegerField()  # spreads the workers, so that they do not wait for one row
    completed = models.IntegerField(db_default=0)
    failed = models.IntegerField(db_default=0)
    run_ms = models.BigIntegerField(db_default=0)  # summed over the attempts
    wait_ms = models.BigIntegerField(db_default=0)  # from due to started, summed
    run_buckets = ArrayField(
        models.IntegerField(), db_default=[], blank=True
    )  # of completed: tasks/queue/throughput.py
    wait_buckets = ArrayField(models.IntegerField(), db_default=[], blank=True)

    class Meta:
        default_permissions = ("view",)
        constraints = [models.UniqueConstraint(fields=["minute", "queue_name", "shard"], name="tasks_throughput_row")]

    def __str__(self) -> str:
        return f"{self.queue_name} at {self.minute:%H:%M}: {self.completed}"


class ThroughputTotal(models.Model):
    """The sum of a queue's minutes in `tasks_throughput` up to `folded_until`, kept for ever."""

    queue_name = models.TextField(primary_key=True)
    folded_until = models.DateTimeField()
    completed = models.BigIntegerField(db_default=0)
    failed = models.BigIntegerField(db_default=0)
    run_ms = models.BigIntegerField(db_default=0)
    wait_ms = models.BigIntegerField(db_default=0)
    run_buckets = ArrayField(models.BigIntegerField(), db_default=[], blank=True)
    wait_buckets = ArrayField(models.BigIntegerField(), db_default=[], blank=True)

    class Meta:
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.queue_name}: {self.completed}"


class ThroughputSlot(models.Model):
    """The sum of one queue's minutes in the half hour from `at`; kept as long as a chart needs it.

    It has a minute's columns, so that queries can read both together.
    """

    at = models.DateTimeField()
    queue_name = models.TextField()
    completed = models.IntegerField(db_default=0)
    failed = models.IntegerField(db_default=0)
    run_buckets = ArrayField(models.IntegerField(), db_default=[], blank=True)
    wait_buckets = ArrayField(models.IntegerField(), db_default=[], blank=True)

    class Meta:
        default_permissions = ("view",)
        constraints = [models.UniqueConstraint(fields=["at", "queue_name"], name="tasks_throughputslot_row")]

    def __str__(self) -> str:
        return f"{self.queue_name} from {self.at:%H:%M}: {self.completed}"
