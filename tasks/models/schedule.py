"""Schedules, and their ticks: which task each time of a schedule has enqueued, or why it has not."""

from typing import Any, ClassVar

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from tasks.models.task import HIGHEST_VERSION, Viewable
from tasks.support.durations import StatementTimestamp
from tasks.support.recurrence import LONGEST_EVERY, Recurrence

LONGEST_NAME = 200  # the ordering key of its tasks is `schedule:` and the name


class Outcome(models.TextChoices):
    """The outcomes of a tick."""

    ENQUEUED = "enqueued", _("Enqueued")
    SKIPPED = "skipped", _("Skipped")  # an earlier task was unfinished
    MISSED = "missed", _("Missed")  # nobody was there to tick for longer than the grace
    MANUAL = "manual", _("Run by hand")


class Schedule(Viewable):
    """When a task is enqueued again and again.

    `version` grows with every update, ticks included; `edition` only when a setting changes, so that pages can tell.
    Triggers (migration 0003) keep both, clear `next_at` when the times change, and empty what belongs to a pause.
    """

    class Missed(models.TextChoices):
        SKIP = "skip", _("Skip them")
        ONCE = "once", _("One task for all")
        ALL = "all", _("One task for each")

    class Overlap(models.TextChoices):
        SKIP = "skip", _("Skip the tick")
        QUEUE = "queue", _("Wait behind it")
        ALLOW = "allow", _("Run beside it")

    # What `@task` declares. A row whose columns differ from `declared` was overridden by an operator.
    DECLARABLE: ClassVar[tuple[str, ...]] = ("cron", "every_seconds", "timezone", "missed", "overlap")

    name = models.TextField(primary_key=True)
    task_path = models.TextField()
    args = models.JSONField(db_default=[])
    kwargs = models.JSONField(db_default={})
    queue_name = models.TextField(null=True, blank=True)  # noqa: DJ001  null: as the task declares
    priority = models.SmallIntegerField(null=True, blank=True)  # null: as the task declares
    cron = models.TextField(null=True, blank=True)  # noqa: DJ001  null: every_seconds instead
    every_seconds = models.IntegerField(null=True, blank=True)
    timezone = models.TextField(db_default="UTC")
    missed = models.TextField(choices=Missed, db_default=Missed.SKIP)
    overlap = models.TextField(choices=Overlap, db_default=Overlap.SKIP)
    ends_at = models.DateTimeField(null=True, blank=True)  # no tick after it
    paused = models.BooleanField(db_default=False)
    paused_at = models.DateTimeField(null=True, blank=True)
    paused_by = models.TextField(db_default="", blank=True)
    problem = models.TextField(db_default="", blank=True)  # why Rowlock itself paused it
    next_at = models.DateTimeField(null=True, blank=True)  # null: over, or a scheduler has yet to compute it
    ended_at = models.DateTimeField(null=True, blank=True)  # since then it is over: no time is left
    last_at = models.DateTimeField(null=True, blank=True)  # the time of its latest tick
    last_outcome = models.TextField(choices=Outcome, db_default="", blank=True)
    last_task_id = models.BigIntegerField(null=True, blank=True)  # the latest task that it enqueued
    held_by_task_id = models.BigIntegerField(null=True, blank=True)  # the unfinished task that the tick met
    declared = models.JSONField(null=True, blank=True)  # what code declares; null: made by an operator
    version = models.IntegerField(db_default=1)
    edition = models.IntegerField(db_default=1)
    created_at = models.DateTimeField(db_default=StatementTimestamp())

    class Meta(Viewable.Meta):
        permissions = [
            ("edit_schedule", _("Can add, edit and delete schedules")),
            ("pause_schedule", _("Can pause and resume schedules")),
            ("run_schedule", _("Can run schedules now")),
        ]
        indexes = [
            models.Index(
                F("next_at").asc(nulls_first=True),
                condition=Q(paused=False, ended_at__isnull=True),
                name="tasks_schedule_due",
            ),
            models.Index(F("paused_at").desc(), condition=~Q(problem=""), name="tasks_schedule_broken"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(cron__isnull=False, every_seconds__isnull=True)
                | Q(cron__isnull=True, every_seconds__isnull=False),
                name="tasks_schedule_cron_or_every",
            ),
            models.CheckConstraint(
                condition=Q(every_seconds__isnull=True) | Q(every_seconds__gte=1, every_seconds__lte=LONGEST_EVERY),
                name="tasks_schedule_every_in_range",
            ),
            models.CheckConstraint(condition=Q(missed__in=("skip", "once", "all")), name="tasks_schedule_missed_known"),
            models.CheckConstraint(
                condition=Q(overlap__in=("skip", "queue", "allow")), name="tasks_schedule_overlap_known"
            ),
            models.CheckConstraint(
                condition=Q(last_outcome__in=("", *Outcome.values)), name="tasks_schedule_outcome_known"
            ),
            models.CheckConstraint(
                condition=Q(last_outcome="skipped", held_by_task_id__isnull=False)
                | (~Q(last_outcome="skipped") & Q(held_by_task_id__isnull=True)),
                name="tasks_schedule_held_iff_skipped",
            ),
            models.CheckConstraint(
                condition=Q(priority__isnull=True) | Q(priority__gte=-100, priority__lte=100),
                name="tasks_schedule_priority_in_range",
            ),
            models.CheckConstraint(
                condition=Q(paused=True, paused_at__isnull=False)
                | Q(paused=False, paused_at__isnull=True, paused_by="", problem=""),
                name="tasks_schedule_pause_whole",
            ),
            models.CheckConstraint(
                condition=Q(next_at__isnull=True) | Q(ended_at__isnull=True), name="tasks_schedule_over_has_no_next"
            ),
            models.CheckConstraint(
                condition=Q(next_at__isnull=True) | Q(ends_at__isnull=True) | Q(next_at__lte=F("ends_at")),
                name="tasks_schedule_next_before_end",
            ),
            models.CheckConstraint(
                condition=Q(version__gte=1, version__lte=HIGHEST_VERSION, edition__gte=1),
                name="tasks_schedule_version_in_range",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def recurrence(self) -> Recurrence:
        return Recurrence(self.cron, self.every_seconds, self.timezone)

    @property
    def overridden(self) -> list[str]:
        """The settings in which the row differs from what code declares."""
        declared: dict[str, Any] = self.declared or {}
        return [name for name in self.DECLARABLE if declared and getattr(self, name) != declared.get(name)]


class Tick(Viewable):
    """One time of a schedule that was dealt with; the unique index makes it once. It outlives its schedule and task."""

    schedule_name = models.TextField()
    at = models.DateTimeField()  # the time that was due, and not that of the row
    made_at = models.DateTimeField(db_default=StatementTimestamp())
    outcome = models.TextField(choices=Outcome)
    task_id = models.BigIntegerField(null=True, blank=True)
    held_by_task_id = models.BigIntegerField(null=True, blank=True)  # the unfinished task that made it skip
    times = models.IntegerField(db_default=1)  # due times that it stands for, from `at` on; at most 1000 are counted

    class Meta(Viewable.Meta):
        indexes = [
            models.Index(fields=["task_id"], condition=Q(task_id__isnull=False), name="tasks_tick_task"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["schedule_name", "at"], name="tasks_tick_once"),
            models.CheckConstraint(condition=Q(outcome__in=Outcome.values), name="tasks_tick_outcome_known"),
            models.CheckConstraint(
                condition=Q(outcome__in=("enqueued", "manual"), task_id__isnull=False)
                | (~Q(outcome__in=("enqueued", "manual")) & Q(task_id__isnull=True)),
                name="tasks_tick_task_iff_enqueued",
            ),
            models.CheckConstraint(
                condition=Q(outcome="skipped", held_by_task_id__isnull=False)
                | (~Q(outcome="skipped") & Q(held_by_task_id__isnull=True)),
                name="tasks_tick_held_iff_skipped",
            ),
            models.CheckConstraint(condition=Q(times__gte=1), name="tasks_tick_stands_for_some"),
        ]

    def __str__(self) -> str:
        return f"{self.schedule_name} at {self.at:%Y-%m-%d %H:%M:%S}: {self.outcome}"
