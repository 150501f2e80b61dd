"""Tables that pages keep: saved views, the demo's rows, runs of the lab."""

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from tasks.support.durations import StatementTimestamp


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
