"""The tables of bulk actions and of submitted forms."""

from django.db import models

from tasks.clock import StatementTimestamp


class BulkRun(models.Model):
    """One action on every task that matched a filter, in chunks; `cursor` is the last id done.

    `filter` is the query of the list's URL; no task above `upto`, the highest id at the preview, is touched. `refusals`
    has for each code the number of tasks, the first few ids and the sentence of the first.
    """

    action = models.TextField()
    options = models.JSONField(db_default={}, blank=True)  # settings and reason; see tasks.bulk.instruction
    filter = models.TextField(blank=True)
    upto = models.BigIntegerField()
    actor = models.TextField()
    task_id = models.BigIntegerField(null=True, blank=True, db_index=True)  # the task that carries it out
    created_at = models.DateTimeField(db_default=StatementTimestamp())
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    stop_requested_at = models.DateTimeField(null=True, blank=True)
    total = models.IntegerField(null=True, blank=True)  # matching tasks at the start
    looked = models.IntegerField(db_default=0)
    done = models.IntegerField(db_default=0)
    asked = models.IntegerField(db_default=0)  # tasks whose worker was asked to end them
    refused = models.IntegerField(db_default=0)
    refusals = models.JSONField(db_default={}, blank=True)
    cursor = models.BigIntegerField(db_default=0)

    class Meta:
        default_permissions = ("view",)
        # Rights about tasks in general; the table that declares a right does not matter.
        permissions = [
            ("edit_task", "Can move tasks to another queue, priority or time"),
            ("enqueue_task", "Can enqueue tasks by hand"),
            ("run_burst", "Can start a worker on the web server's host"),
        ]

    def __str__(self) -> str:
        return f"bulk run {self.pk}: {self.action}"


class SubmittedForm(models.Model):
    """One form that was carried out, so that a second click does nothing; `target` is the result of the first."""

    token = models.TextField(primary_key=True)
    target = models.TextField(db_default="", blank=True)
    at = models.DateTimeField(db_default=StatementTimestamp(), db_index=True)

    class Meta:
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.token}: {self.target}"
