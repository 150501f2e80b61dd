"""The limits of keys that operators set, and the buckets of all rates."""

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from tasks.models.task import RATE_IN_RANGE, SLOTS, Viewable


class Limit(Viewable):
    """An operator's setting for a key. It applies to every task whose concurrency key or rate key this is.

    A null limits nothing by itself: what the task declares applies then.
    """

    key = models.TextField(primary_key=True)
    max_running = models.SmallIntegerField(null=True, blank=True)  # of the tasks that have it as concurrency key
    rate = models.IntegerField(null=True, blank=True)  # starts in each period
    period_seconds = models.IntegerField(null=True, blank=True)
    paused = models.BooleanField(db_default=False)
    paused_at = models.DateTimeField(null=True, blank=True)
    paused_by = models.TextField(db_default="", blank=True)

    class Meta(Viewable.Meta):
        permissions = [("configure_limit", _("Can change and pause limits"))]
        constraints = [
            models.CheckConstraint(
                condition=Q(max_running__isnull=True) | Q(max_running__gte=1, max_running__lte=SLOTS),
                name="tasks_limit_max_running_in_range",
            ),
            models.CheckConstraint(condition=RATE_IN_RANGE, name="tasks_limit_rate_in_range"),
        ]

    def __str__(self) -> str:
        return self.key


class Bucket(Viewable):
    """When a rate allows its next start: `next_at`, which each start moves one interval on. No row is a full bucket.

    Source: the virtual scheduling of the generic cell rate algorithm (ITU-T I.371). One row per rate, apart from what
    operators edit, so that claims lock none of that.
    """

    name = models.TextField(primary_key=True)  # key:NAME or queue:NAME
    next_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.name
