"""Tasks, their queues and limits, their attempts, and the writes that came too late."""

from datetime import timedelta
from typing import Self

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from tasks.support.durations import StatementTimestamp


class Viewable(models.Model):
    """A table whose only right is to see it; operations, not forms, change its rows."""

    class Meta:
        abstract = True
        default_permissions = ("view",)


class TaskStatus(models.TextChoices):
    """The states of a task; each comment names the transitions that lead into the state."""

    READY = "READY", _("Ready")  # enqueue, release, recover, requeue, a failure with attempts left
    PROCESSING = "PROCESSING", _("Processing")  # claim
    COMPLETED = "COMPLETED", _("Completed")  # complete
    FAILED = "FAILED", _("Failed")  # fail or recover, with no attempt left
    CANCELLED = "CANCELLED", _("Cancelled")  # cancel


class UniqueWhile(models.TextChoices):
    """How long a task holds its unique key. Letters, because every task with a key stores one and an index reads it."""

    QUEUED = "q", _("While it is queued")
    ACTIVE = "a", _("Until it has ended")
    BEGUN = "b", _("Given up")  # was QUEUED, and came back to READY after a claim: it does not take its key again


FINISHED = (TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED)
HOLDS_ITS_KEY = (TaskStatus.READY, TaskStatus.PROCESSING)
ONE_PER_KEY = "tasks_task_one_per_key"
ONE_PER_UNIQUE_KEY = "tasks_task_one_per_unique_key"
HOLDS_UNIQUE_KEY = Q(unique_key__isnull=False) & (
    Q(status=TaskStatus.READY, unique_while__in=(UniqueWhile.QUEUED, UniqueWhile.ACTIVE))
    | Q(status=TaskStatus.PROCESSING, unique_while=UniqueWhile.ACTIVE)
)
HIGHEST_VERSION = 2_000_000_000
# W3C trace context, version 00: trace id, span id, flags. Ids of zeros are invalid.
TRACEPARENT = "^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$"
ONE_PER_SLOT = ("tasks_task_one_per_slot", "tasks_task_one_per_queue_slot")
SLOTS = 10_000  # at most, of a limit
HAS_LIMIT = Q(max_running__isnull=False) | Q(rate__isnull=False)
RATE_IN_RANGE = Q(rate__isnull=True, period_seconds__isnull=True) | Q(
    rate__isnull=False, period_seconds__isnull=False, rate__gte=1, rate__lte=1_000_000, period_seconds__gte=1
)
LONGEST_OBJECTIVE = timedelta(days=366)
OBJECTIVE_IN_RANGE = Q(objective__isnull=True) | Q(
    objective__gte=timedelta(seconds=1), objective__lte=LONGEST_OBJECTIVE
)


class TaskQuerySet(models.QuerySet["Task"]):
    """Tasks by their state; `tasks.queue.presence` decides about the workers of PROCESSING tasks."""

    def ready(self) -> Self:
        return self.filter(status="READY")

    def processing(self) -> Self:
        return self.filter(status="PROCESSING")

    def completed(self) -> Self:
        return self.filter(status="COMPLETED")

    def failed(self) -> Self:
        return self.filter(status="FAILED")

    def cancelled(self) -> Self:
        return self.filter(status="CANCELLED")

    def unfinished(self) -> Self:
        return self.filter(status__in=HOLDS_ITS_KEY)


class TaskColumns(Viewable):
    """The columns of a task, in the queue and in the archive."""

    task_path = models.TextField()
    queue_name = models.TextField(db_default="default")
    priority = models.SmallIntegerField(db_default=0)
    args = models.JSONField(db_default=[])
    kwargs = models.JSONField(db_default={})
    status = models.TextField(choices=TaskStatus, db_default=TaskStatus.READY)
    version = models.IntegerField(db_default=1)
    created_at = models.DateTimeField(db_default=StatementTimestamp())
    run_after = models.DateTimeField(db_default=StatementTimestamp())
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    attempt = models.SmallIntegerField(db_default=0)
    max_attempts = models.SmallIntegerField(db_default=5)
    claimed_by = models.TextField(null=True, blank=True)  # noqa: DJ001  null: not claimed
    finished_by = models.TextField(null=True, blank=True)  # noqa: DJ001  the worker that completed it
    ordering_key = models.TextField(null=True, blank=True)  # noqa: DJ001  null takes the unkeyed claim path
    return_value = models.JSONField(null=True, blank=True)
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    unique_key = models.TextField(null=True, blank=True)  # noqa: DJ001  null: any number of such tasks
    unique_while = models.TextField(choices=UniqueWhile, null=True, blank=True)  # noqa: DJ001  null: without a key
    concurrency_key = models.TextField(null=True, blank=True)  # noqa: DJ001  null: limited by its queue alone
    concurrency_limit = models.SmallIntegerField(null=True, blank=True)
    rate_key = models.TextField(null=True, blank=True)  # noqa: DJ001  null: no rate of its own
    rate = models.IntegerField(null=True, blank=True)  # starts in each period, over all tasks of the rate key
    period_seconds = models.IntegerField(null=True, blank=True)
    slot = models.SmallIntegerField(null=True, blank=True)  # of its concurrency key, while it is PROCESSING
    queue_slot = models.SmallIntegerField(null=True, blank=True)  # of its queue, if that is limited
    # The trace that enqueued it, in W3C's form; null: it was enqueued outside any.
    traceparent = models.TextField(null=True, blank=True)  # noqa: DJ001

    class Meta(Viewable.Meta):
        abstract = True

    def __str__(self) -> str:
        return f"#{self.pk} {self.task_path}"


class Task(TaskColumns):
    """One task. `version` is the fence: the database raises it on every update, also from outside Rowlock."""

    objects = TaskQuerySet.as_manager()

    class Meta(Viewable.Meta):
        # Without this, Django 6.1 warns about the index below when it checks without a database.
        required_db_features = ["supports_covering_indexes"]
        permissions = [
            ("requeue_task", _("Can run tasks again")),
            ("recover_task", _("Can take tasks back from dead workers")),
            ("cancel_task", _("Can cancel tasks")),
        ]
        indexes = [
            # The order of the claim. `queue_name = ANY(…)` cannot use it: see tasks/queue/claim.py.
            models.Index(
                F("queue_name"),
                F("priority").desc(),
                F("run_after"),
                F("id"),
                condition=Q(status=TaskStatus.READY, ordering_key__isnull=True, concurrency_key__isnull=True),
                name="tasks_task_claim",
            ),
            # The lines of limited tasks, apart: the claims of other tasks read none of those that are held back.
            models.Index(
                fields=["concurrency_key", "queue_name", "priority", "run_after", "id"],
                condition=Q(status=TaskStatus.READY, concurrency_key__isnull=False),
                name="tasks_task_limited",
            ),
            # Includes the columns that pages count by, so no row is read at random. No status: see diagnosis/stats.py.
            models.Index(
                fields=["ordering_key", "id"],
                include=("queue_name", "run_after"),
                condition=Q(ordering_key__isnull=False, status__in=HOLDS_ITS_KEY),
                name="tasks_task_keyed",
            ),
            models.Index(fields=["claimed_by"], condition=Q(status=TaskStatus.PROCESSING), name="tasks_task_claimed"),
            # Includes the columns by which failed tasks are counted, so that no page is read at random.
            models.Index(
                fields=["id"],
                include=("queue_name", "status"),
                condition=Q(status__in=("FAILED", "CANCELLED")),
                name="tasks_task_unsuccessful_rows",
            ),
        ]
        constraints = [
            # Guarantees order per key: the claim looks for heads of keys, and this makes it safe.
            models.UniqueConstraint(
                fields=["ordering_key"],
                condition=Q(status=TaskStatus.PROCESSING, ordering_key__isnull=False),
                name=ONE_PER_KEY,
            ),
            # A limit of n is n slots: two rows cannot have one slot. The check that each running row of a key has one
            # is in tasks/migrations/0003_guards.py.
            models.UniqueConstraint(
                fields=["concurrency_key", "slot"],
                condition=Q(status=TaskStatus.PROCESSING, concurrency_key__isnull=False),
                name=ONE_PER_SLOT[0],
            ),
            models.UniqueConstraint(
                fields=["queue_name", "queue_slot"],
                condition=Q(status=TaskStatus.PROCESSING, queue_slot__isnull=False),
                name=ONE_PER_SLOT[1],
            ),
            # One index for both kinds, so that a key means the same to all who use it.
            models.UniqueConstraint(fields=["unique_key"], condition=HOLDS_UNIQUE_KEY, name=ONE_PER_UNIQUE_KEY),
            models.CheckConstraint(condition=Q(status__in=TaskStatus.values), name="tasks_task_status_known"),
            models.CheckConstraint(
                condition=Q(status=TaskStatus.PROCESSING, claimed_by__isnull=False)
                | Q(~Q(status=TaskStatus.PROCESSING), claimed_by__isnull=True),
                name="tasks_task_claimed_iff_processing",
            ),
            models.CheckConstraint(
                condition=Q(status__in=FINISHED, finished_at__isnull=False)
                | Q(~Q(status__in=FINISHED), finished_at__isnull=True),
                name="tasks_task_finished_at_iff_finished",
            ),
            # A READY row without an attempt left would fail every claim that includes it.
            models.CheckConstraint(
                condition=~Q(status=TaskStatus.READY) | Q(attempt__lt=F("max_attempts")),
                name="tasks_task_ready_has_attempts",
            ),
            models.CheckConstraint(
                condition=Q(attempt__gte=0, max_attempts__gte=1, attempt__lte=F("max_attempts")),
                name="tasks_task_attempts_in_range",
            ),
            # Room for `version + 1`, which every claim computes; the trigger restarts at 1 there.
            models.CheckConstraint(condition=Q(version__lte=HIGHEST_VERSION), name="tasks_task_version_leaves_room"),
            models.CheckConstraint(
                condition=Q(priority__gte=-100, priority__lte=100), name="tasks_task_priority_in_range"
            ),
            models.CheckConstraint(
                condition=~Q(task_path="") & ~Q(queue_name="") & (Q(ordering_key__isnull=True) | ~Q(ordering_key="")),
                name="tasks_task_names_not_empty",
            ),
            models.CheckConstraint(condition=Q(traceparent__regex=TRACEPARENT), name="tasks_task_traceparent_form"),
        ]


class Queue(Viewable):
    """Operators' settings of a queue. A queue without a row is not paused and recovers automatically."""

    class Recovery(models.TextChoices):
        AUTOMATIC = "automatic", _("Automatic")
        ASK = "ask", _("Manual")

    name = models.TextField(primary_key=True)
    paused = models.BooleanField(db_default=False)
    paused_at = models.DateTimeField(null=True, blank=True)
    paused_by = models.TextField(db_default="", blank=True)
    recovery = models.TextField(choices=Recovery, db_default=Recovery.AUTOMATIC)
    max_running = models.SmallIntegerField(null=True, blank=True)
    rate = models.IntegerField(null=True, blank=True)  # starts in each period
    period_seconds = models.IntegerField(null=True, blank=True)
    objective = models.DurationField(null=True, blank=True)  # how long a due task may wait

    class Meta(Viewable.Meta):
        permissions = [
            ("pause_queue", _("Can pause and resume queues")),
            ("configure_queue", _("Can choose how queues recover")),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(recovery__in=("automatic", "ask")), name="tasks_queue_recovery_known"),
            models.CheckConstraint(
                condition=Q(max_running__isnull=True) | Q(max_running__gte=1, max_running__lte=SLOTS),
                name="tasks_queue_max_running_in_range",
            ),
            models.CheckConstraint(condition=RATE_IN_RANGE, name="tasks_queue_rate_in_range"),
            models.CheckConstraint(condition=OBJECTIVE_IN_RANGE, name="tasks_queue_objective_in_range"),
        ]
        # A claim looks for the queues with a limit first, and there are few.
        indexes = [models.Index(fields=["name"], condition=HAS_LIMIT, name="tasks_queue_limited")]

    def __str__(self) -> str:
        return self.name


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


class Attempt(Viewable):
    """An attempt that failed, was abandoned, timed out or was released; the task's row records success."""

    class Outcome(models.TextChoices):
        FAILED = "failed", _("Failed")  # the handler raised
        ABANDONED = "abandoned", _("Abandoned")  # its worker died
        TIMED_OUT = "timed_out", _("Timed out")  # its worker was ended at the task's timeout
        RELEASED = "released", _("Released")  # given back: a stop or cancel, or an unknown function

    # The database has ON DELETE CASCADE (migration 0003), so that raw deletes keep the tables consistent.
    task = models.ForeignKey(Task, on_delete=models.DO_NOTHING, db_constraint=False, related_name="attempts")
    number = models.SmallIntegerField()
    worker_id = models.TextField()
    outcome = models.TextField(choices=Outcome)
    exception_class = models.TextField(db_default="", blank=True)
    traceback = models.TextField(db_default="", blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(db_default=StatementTimestamp())
    queue_name = models.TextField(db_default="", blank=True)
    release = models.TextField(db_default="", blank=True)  # the setting RELEASE of the worker that wrote it
    # "3fa4c1d2e5aa shop/tasks.py:charge_card": a hash of task path, exception class and place, and the place. Equal for
    # equal failures, whatever their messages; empty if the attempt was given back. By bytes, so that the hash alone
    # finds it.
    fingerprint = models.TextField(db_default="", blank=True, db_collation="C")
    traceparent = models.TextField(null=True, blank=True)  # noqa: DJ001  the span of this attempt, if it was recorded

    class Meta(Viewable.Meta):
        required_db_features = ["supports_covering_indexes"]  # as those of Task
        indexes = [
            # One failure's attempts in a time are read from it alone, and the next failure is one step away.
            models.Index(
                fields=["fingerprint", "finished_at"],
                include=("queue_name", "release"),
                name="tasks_attempt_failures",
            )
        ]
        constraints = [
            models.CheckConstraint(condition=Q(traceparent__regex=TRACEPARENT), name="tasks_attempt_traceparent_form")
        ]

    def __str__(self) -> str:
        return f"attempt {self.number} of #{self.task_id}: {self.outcome}"


class RefusedWrite(Viewable):
    """A late write that the version refused, because the row had changed since the claim."""

    task_id = models.BigIntegerField(db_index=True)
    worker_id = models.TextField()
    expected_version = models.IntegerField()
    actual_version = models.IntegerField(null=True, blank=True)  # null: the row is gone
    intent = models.TextField()  # the refused write: complete, fail
    at = models.DateTimeField(db_default=StatementTimestamp())

    def __str__(self) -> str:
        return f"#{self.task_id}: {self.worker_id} expected v{self.expected_version}, found v{self.actual_version}"
