"""Tables of the dashboard, and permissions on PostgreSQL's sessions, which have no table of ours."""

from functools import reduce
from operator import or_
from typing import Any

from django.conf import settings
from django.contrib.postgres.fields import DateTimeRangeField
from django.contrib.postgres.fields.ranges import RangeBoundary
from django.contrib.postgres.indexes import GistIndex
from django.core.checks import CheckMessage
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from dashboard.alerts import secrets
from tasks.models.fields import APP_IS_MISSING, ArrayField
from tasks.panels import Severity
from tasks.support.durations import StatementTimestamp

FERNET = r"^gAAAA[A-Za-z0-9_=-]{20,}$"  # an encrypted text


class Backend(models.Model):
    """A session of PostgreSQL. It has no table; it carries the permissions to see and to signal sessions."""

    class Meta:
        managed = False
        default_permissions = ("view",)
        permissions = [("signal_backend", "Can cancel and terminate database sessions")]

    def __str__(self) -> str:
        return f"backend {self.pk}"


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


class SavedView(models.Model):
    """A search of the list of tasks that a person keeps under a name."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    name = models.TextField()
    query = models.TextField()  # of the list's URL

    class Meta:
        default_permissions = ("view",)
        constraints = [models.UniqueConstraint(fields=["user", "name"], name="dashboard_savedview_one_of_a_name")]

    def __str__(self) -> str:
        return self.name


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


class DemoRow(models.Model):
    """One row that the demo made, by id or name. The demo exists while any of these rows does."""

    class Kind(models.TextChoices):
        TASK = "task"
        ORDER = "order"
        ACCOUNT = "account"  # with its entries
        USER = "user"  # the owner of an account
        QUEUE = "queue"  # its setting and its figures
        COMMAND = "command"  # its expectation and its runs

    kind = models.TextField(choices=Kind)
    row_id = models.BigIntegerField(db_default=0)
    name = models.TextField(db_default="", blank=True)

    class Meta:
        default_permissions = ("view",)
        permissions = [("direct_demo", _("Can direct and remove the demo"))]
        constraints = [models.UniqueConstraint(fields=["kind", "row_id", "name"], name="dashboard_demorow_once")]

    def __str__(self) -> str:
        return f"{self.kind} {self.name or self.row_id}"


class Installation(models.Model):
    """Another installation of Rowlock, which the page of the fleet shows. Superusers keep these rows."""

    name = models.TextField(unique=True)
    url = models.TextField(help_text=_("Of its site, like https://ops-billing.example"))
    token = models.TextField()  # of its API, encrypted by `dashboard.alerts.secrets`

    class Meta:
        default_permissions = ("view",)
        constraints = [
            models.CheckConstraint(
                condition=Q(name__regex=r"^[^=,|[:cntrl:]]{1,255}$"), name="dashboard_installation_name_is_one"
            ),
            models.CheckConstraint(
                condition=Q(url__regex=r"^https?://[^/?#@[:space:]]+(/[^?#@[:space:]]*)?$"),
                name="dashboard_installation_url_is_one",
            ),
            # No token can be stored in plain, by SQL neither.
            models.CheckConstraint(condition=Q(token__regex=FERNET), name="dashboard_installation_sealed"),
        ]

    def __str__(self) -> str:
        return self.name


class LabRun(models.Model):
    """One run of the lab, finished or requested. Runs with the same `batch` were requested together.

    `result`: numbers of `dashboard.lab.measure.Result`; `spans`: the chart; `statements`: SQL as sent; `waits`: who
    waited for whom; `server`: the server it ran on.
    """

    class State(models.TextChoices):
        # requested → running → over, with a result or an error
        WAITING = "waiting", _("Waiting")
        RUNNING = "running", _("Running")
        FINISHED = "finished", _("Finished")
        FAILED = "failed", _("Failed")

    batch = models.TextField(db_index=True)
    pattern = models.TextField()
    plan = models.JSONField()
    state = models.TextField(choices=State, db_default=State.WAITING, default=State.WAITING)
    actor = models.TextField()
    task_id = models.BigIntegerField(null=True, blank=True)  # the task that runs the batch
    schema = models.TextField(db_default="", blank=True)  # set while it runs
    effects = models.IntegerField(db_default=0)
    error = models.TextField(db_default="", blank=True)
    result = models.JSONField(null=True, blank=True)
    spans = models.JSONField(null=True, blank=True)
    statements = models.JSONField(null=True, blank=True)
    waits = models.JSONField(null=True, blank=True)
    server = models.TextField(db_default="", blank=True)
    created_at = models.DateTimeField(db_default=StatementTimestamp())
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    stop_requested_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        default_permissions = ("view",)
        permissions = [("run_pattern", _("Can run patterns in the lab"))]

    def __str__(self) -> str:
        return f"run {self.pk} of {self.pattern}"


SHA_256 = "^[0-9a-f]{64}$"


class ApiToken(models.Model):
    """A token of the API: it acts for its user, with those of the user's rights that its group has too.

    The secret itself is nowhere: `secret_hash` is its SHA-256, `shown` its first characters.
    """

    name = models.TextField(unique=True)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    group = models.ForeignKey("auth.Group", on_delete=models.CASCADE, null=True, blank=True, related_name="+")
    secret_hash = models.TextField(unique=True)
    shown = models.TextField()
    created_at = models.DateTimeField(db_default=StatementTimestamp())
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)  # to the minute
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        default_permissions = ()  # superusers alone make and see them
        verbose_name = _("API token")
        constraints = [
            models.CheckConstraint(condition=Q(secret_hash__regex=SHA_256), name="dashboard_apitoken_hashed")
        ]

    def __str__(self) -> str:
        return self.name


class ApiRequest(models.Model):
    """A write that a token carried out, under its `Idempotency-Key`, with the answer."""

    token = models.ForeignKey(ApiToken, on_delete=models.CASCADE, related_name="+")
    key = models.TextField()
    digest = models.TextField()  # of method, path, version and body
    status = models.SmallIntegerField(null=True)  # null only within the transaction of the write
    body = models.TextField(db_default="")
    at = models.DateTimeField(db_default=StatementTimestamp(), db_index=True)

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["token", "key"], name="dashboard_apirequest_once")]

    def __str__(self) -> str:
        return self.key


class ApiCount(models.Model):
    """How often a token has asked, or an address was wrong, since the period began. The table is unlogged."""

    name = models.TextField(primary_key=True)
    began_at = models.DateTimeField()
    number = models.IntegerField()

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.number} of {self.name}"
