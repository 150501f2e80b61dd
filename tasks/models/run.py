"""The actions of people and commands: the audit, bulk runs and submitted forms."""

from django.db import models

from tasks.models.task import Viewable
from tasks.support.durations import StatementTimestamp

IS_ENQUEUE = models.Q(action__startswith="enqueue")


class Intervention(Viewable):
    """A change by a person or a command, append-only: triggers refuse to update, delete and truncate.

    `role` is the database role that wrote the row, whatever the statement said.
    """

    at = models.DateTimeField(db_default=StatementTimestamp())
    actor = models.TextField()
    source = models.TextField()  # page or command
    action = models.TextField()
    target = models.TextField(db_index=True)
    reason = models.TextField(db_default="", blank=True)
    version_before = models.IntegerField(null=True, blank=True)
    version_after = models.IntegerField(null=True, blank=True)
    role = models.TextField(db_default="", blank=True)

    class Meta(Viewable.Meta):
        indexes = [
            models.Index(fields=["actor", "id"], name="tasks_intervention_actor"),
            # The audit page folds enqueues away, of which there may be millions between two changes.
            models.Index(fields=["id"], condition=~IS_ENQUEUE, name="tasks_intervention_changes"),
        ]

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.target}"


class BulkRun(Viewable):
    """One action on every task that matched a filter, in chunks; `cursor` is the last id done.

    `filter` is the query of the list's URL; no task above `upto`, the highest id at the preview, is touched. `refusals`
    has for each code the number of tasks, the first few ids and the sentence of the first.
    """

    action = models.TextField()
    options = models.JSONField(db_default={}, blank=True)  # settings, reason, source; see tasks.operations.bulk
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

    class Meta(Viewable.Meta):
        # Rights about tasks in general; the table that declares a right does not matter.
        permissions = [
            ("edit_task", "Can move tasks to another queue, priority or time"),
            ("enqueue_task", "Can enqueue tasks by hand"),
            ("run_burst", "Can start a worker on the web server's host"),
        ]


class SubmittedForm(Viewable):
    """One form that was carried out, so that a second click does nothing; `target` is the result of the first."""

    token = models.TextField(primary_key=True)
    target = models.TextField(db_default="", blank=True)
    at = models.DateTimeField(db_default=StatementTimestamp(), db_index=True)
