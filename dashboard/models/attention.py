"""Lines of "Needs attention": known ones, when they appear, and where they are sent."""

from functools import reduce
from operator import or_

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from dashboard import secrets
from tasks.models.fields import ArrayField
from tasks.panels import Severity
from tasks.support.durations import StatementTimestamp


class Acknowledgement(models.Model):
    """A line of "Needs attention" that somebody folded away until a time, or until it grows.

    `size` is how many things the line covered then; null if growth does not unfold it.
    """

    line = models.TextField(primary_key=True)  # the line's key, as its source named it
    text = models.TextField(db_default="", blank=True)  # the line's text at that time
    actor = models.TextField()
    reason = models.TextField()
    at = models.DateTimeField(db_default=StatementTimestamp())
    until = models.DateTimeField(null=True, blank=True)
    size = models.BigIntegerField(null=True, blank=True)

    class Meta:
        default_permissions = ("view",)
        permissions = [("acknowledge", _("Can acknowledge what needs attention"))]
        constraints = [
            # One without an end would hide the next trouble of the same name.
            models.CheckConstraint(
                condition=Q(until__isnull=False) | Q(size__isnull=False), name="dashboard_acknowledgement_ends"
            )
        ]

    def __str__(self) -> str:
        return self.line


class AlertChannel(models.Model):
    """One place that alerts are sent to. Its address is encrypted, as it may hold a password or a token.

    `least_severity`: the mildest lines that it gets (1 is the worst). `queues`, `kinds`: lines of these alone; empty:
    all. The kind of a line is the first word of its key, such as `stale`.
    """

    name = models.TextField(unique=True)
    sealed_address = models.TextField(editable=False)
    least_severity = models.SmallIntegerField(db_default=Severity.SLOW.value, default=Severity.SLOW.value)
    queues = ArrayField(models.TextField(), db_default=[], default=list, blank=True)
    kinds = ArrayField(models.TextField(), db_default=[], default=list, blank=True)
    enabled = models.BooleanField(db_default=True, default=True)
    sent_at = models.DateTimeField(null=True, blank=True)  # when it last took a message
    failed_at = models.DateTimeField(null=True, blank=True)  # when it last did not
    failure = models.TextField(db_default="", blank=True)  # why it did not then, without its address

    class Meta:
        default_permissions = ("add", "change", "delete", "view")
        constraints = [
            models.CheckConstraint(condition=Q(least_severity__range=(1, 4)), name="dashboard_alertchannel_severity"),
            # A Fernet token begins so: an address in plain can never be stored, raw SQL included.
            models.CheckConstraint(
                condition=Q(sealed_address__startswith="gAAAA"), name="dashboard_alertchannel_sealed"
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def address(self) -> str:
        """The address in plain. Raises AddressLocked if SECRET_KEY has changed."""
        return secrets.unseal(self.sealed_address)

    def set_address(self, address: str) -> None:
        """Store the address encrypted; `save()` writes it."""
        self.sealed_address = secrets.seal(address)


class Incident(models.Model):
    """A line of "Needs attention" that alerts were sent about, from its first to its last sight.

    `size`: the size at the last message. `gone_since`: first check that missed the line, which may only flicker.
    `storm`: the incident whose one message stands for this one. One line has one open incident at most.
    """

    line = models.TextField()
    kind = models.TextField()
    severity = models.SmallIntegerField()
    title = models.TextField()
    detail = models.TextField(db_default="", blank=True)
    url = models.TextField(db_default="", blank=True)
    size = models.BigIntegerField()
    storm = models.ForeignKey("self", null=True, blank=True, on_delete=models.CASCADE, related_name="members")
    opened_at = models.DateTimeField(db_default=StatementTimestamp())
    grew_at = models.DateTimeField(null=True, blank=True)
    gone_since = models.DateTimeField(null=True, blank=True)
    resolved_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        default_permissions = ("view",)
        constraints = [
            models.UniqueConstraint(
                fields=["line"], condition=Q(resolved_at__isnull=True), name="dashboard_incident_one_open"
            )
        ]
        indexes = [models.Index(fields=["resolved_at"], name="dashboard_incident_resolved")]

    def __str__(self) -> str:
        return self.title


# The least and the greatest value of each threshold.


RANGES = {
    "blocked_seconds": (1, 3600),
    "blocked_sessions": (1, 1000),
    "blocked_long_seconds": (1, 86_400),
    "idle_seconds": (1, 86_400),
    "open_seconds": (10, 604_800),
    "held_transactions": (1000, 1_000_000_000),
    "connections_percent": (10, 100),
    "late_seconds": (1, 604_800),
    "failed_percent": (1, 100),
    "failed_attempts": (1, 1_000_000),
    "failed_seconds": (300, 3600),
    "grown_percent": (1, 10_000),
    "grown_megabytes": (1, 100_000_000),
}


class Threshold(models.Model):
    """A threshold of "Needs attention" that a person has set; without a row it has its default.

    The unit is the end of its name.
    """

    name = models.TextField(primary_key=True)
    value = models.BigIntegerField()
    actor = models.TextField()
    at = models.DateTimeField(db_default=StatementTimestamp())

    class Meta:
        default_permissions = ()
        permissions = [("configure_alerts", _("Can change alert channels and thresholds"))]  # superusers alone
        constraints = [
            models.CheckConstraint(
                condition=reduce(
                    or_,
                    (Q(name=name, value__gte=least, value__lte=greatest) for name, (least, greatest) in RANGES.items()),
                ),
                name="dashboard_threshold_known_and_in_range",
            )
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.value}"


class TableSize(models.Model):
    """The size of one of our tables with its indexes at one moment; a sample an hour, kept for eight days."""

    at = models.DateTimeField(db_default=StatementTimestamp(), db_index=True)
    name = models.TextField()
    bytes = models.BigIntegerField()

    class Meta:
        default_permissions = ()
        constraints = [
            models.CheckConstraint(condition=Q(bytes__gte=0), name="dashboard_tablesize_not_negative"),
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.bytes}"
