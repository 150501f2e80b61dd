"""The tables of what minutes add up to."""

from django.contrib.postgres.fields import ArrayField
from django.db import models


class ThroughputTotal(models.Model):
    """What the minutes of `tasks_throughput` up to `folded_until` add up to, for ever."""

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
    """What the minutes of half an hour from `at` on add up to, in one queue; kept as long as a chart looks back.

    Its columns are those of a minute, so that both are read as one.
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
