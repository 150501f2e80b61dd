"""The table of totals."""

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
