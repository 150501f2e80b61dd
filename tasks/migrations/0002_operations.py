"""The tables beside the queue: audit, bulk runs, named locks, command runs, reports of tasks, schedules, the archive."""

from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models
from django.db.models import F, Q

from tasks.support.durations import StatementTimestamp

ID = ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"))
VIEW = {"default_permissions": ("view",)}
OUTCOMES = [("enqueued", "Enqueued"), ("skipped", "Skipped"), ("missed", "Missed"), ("manual", "Run by hand")]

# A row keeps its attempts and log lines, so that they go with its month: a table of theirs would have to be searched.
# Pages read it by the end of the task, newest first, which is the order of the partitions. There is no DEFAULT
# partition, because the partitions would have no order beside it.
ARCHIVE = """
CREATE TABLE tasks_archive (
    LIKE tasks_task,
    archived_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    attempts jsonb,
    log jsonb,
    PRIMARY KEY (finished_at, id)
) PARTITION BY RANGE (finished_at);
CREATE INDEX tasks_archive_id ON tasks_archive (id);
CREATE INDEX tasks_archive_task ON tasks_archive (task_path, finished_at, id);
CREATE INDEX tasks_archive_ordering_key ON tasks_archive (ordering_key, finished_at, id)
    WHERE ordering_key IS NOT NULL;
CREATE INDEX tasks_archive_unique_key ON tasks_archive (unique_key, finished_at, id) WHERE unique_key IS NOT NULL;
CREATE INDEX tasks_archive_unsuccessful ON tasks_archive (finished_at, id) WHERE status IN ('FAILED', 'CANCELLED');
"""


class Migration(migrations.Migration):
    dependencies = [("tasks", "0001_queue")]

    operations = [
        migrations.CreateModel(
            "Intervention",
            fields=[
                ID,
                ("at", models.DateTimeField(db_default=StatementTimestamp())),
                ("actor", models.TextField()),
                ("source", models.TextField()),
                ("action", models.TextField()),
                ("target", models.TextField(db_index=True)),
                ("reason", models.TextField(blank=True, db_default="")),
                ("version_before", models.IntegerField(blank=True, null=True)),
                ("version_after", models.IntegerField(blank=True, null=True)),
                ("role", models.TextField(blank=True, db_default="")),
            ],
            options={
                **VIEW,
                "indexes": [
                    models.Index(fields=["actor", "id"], name="tasks_intervention_actor"),
                    models.Index(
                        fields=["id"], condition=~Q(action__startswith="enqueue"), name="tasks_intervention_changes"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            "BulkRun",
            fields=[
                ID,
                ("action", models.TextField()),
                ("options", models.JSONField(blank=True, db_default={})),
                ("filter", models.TextField(blank=True)),
                ("upto", models.BigIntegerField()),
                ("actor", models.TextField()),
                ("task_id", models.BigIntegerField(blank=True, db_index=True, null=True)),
                ("created_at", models.DateTimeField(db_default=StatementTimestamp())),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                ("stop_requested_at", models.DateTimeField(blank=True, null=True)),
                ("total", models.IntegerField(blank=True, null=True)),
                ("looked", models.IntegerField(db_default=0)),
                ("done", models.IntegerField(db_default=0)),
                ("asked", models.IntegerField(db_default=0)),
                ("refused", models.IntegerField(db_default=0)),
                ("refusals", models.JSONField(blank=True, db_default={})),
                ("cursor", models.BigIntegerField(db_default=0)),
            ],
            options={
                **VIEW,
                "permissions": [
                    ("edit_task", "Can move tasks to another queue, priority or time"),
                    ("enqueue_task", "Can enqueue tasks by hand"),
                    ("run_burst", "Can start a worker on the web server's host"),
                ],
            },
        ),
        migrations.CreateModel(
            "SubmittedForm",
            fields=[
                ("token", models.TextField(primary_key=True, serialize=False)),
                ("target", models.TextField(blank=True, db_default="")),
                ("at", models.DateTimeField(db_default=StatementTimestamp(), db_index=True)),
            ],
            options=VIEW,
        ),
        migrations.CreateModel(
            "Lock",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False)),
                ("owner", models.TextField(blank=True, null=True)),
                ("fence", models.BigIntegerField(db_default=0)),
                ("backend", models.TextField(db_default="lease")),
                ("hostname", models.TextField(blank=True, db_default="")),
                ("pid", models.IntegerField(blank=True, null=True)),
                ("acquired_at", models.DateTimeField(blank=True, null=True)),
                ("renewed_at", models.DateTimeField(blank=True, null=True)),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
                ("released_at", models.DateTimeField(blank=True, null=True)),
                ("presence_epoch", models.TextField(blank=True, null=True)),
            ],
            options={
                **VIEW,
                "permissions": [("release_lock", "Can release locks whose holder is gone")],
                "constraints": [
                    models.CheckConstraint(
                        condition=Q(owner__isnull=True, expires_at__isnull=True)
                        | Q(owner__isnull=False, expires_at__isnull=False, acquired_at__isnull=False),
                        name="tasks_lock_held_until",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            "LockWaiter",
            fields=[
                ID,
                ("name", models.TextField()),
                ("owner", models.TextField(unique=True)),
                ("hostname", models.TextField(blank=True, db_default="")),
                ("pid", models.IntegerField(blank=True, null=True)),
                ("holds", ArrayField(models.BigIntegerField(), blank=True, db_default=[])),
                ("since", models.DateTimeField(db_default=StatementTimestamp())),
            ],
            options=VIEW,
        ),
        migrations.CreateModel(
            "CommandRun",
            fields=[
                ID,
                ("name", models.TextField()),
                ("argv", ArrayField(models.TextField())),
                ("hostname", models.TextField(blank=True, db_default="")),
                ("pid", models.IntegerField(blank=True, null=True)),
                ("fence", models.BigIntegerField(blank=True, null=True)),
                ("held_by", models.TextField(blank=True, db_default="")),
                ("started_at", models.DateTimeField(db_default=StatementTimestamp())),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                ("exit_status", models.IntegerField(blank=True, null=True)),
                (
                    "outcome",
                    models.TextField(
                        choices=[
                            ("running", "Running"),
                            ("succeeded", "Succeeded"),
                            ("failed", "Failed"),
                            ("skipped", "Skipped"),
                            ("signalled", "Signalled"),
                            ("lost", "Lock lost"),
                            ("abandoned", "Abandoned"),
                        ],
                        db_default="running",
                    ),
                ),
                ("output", models.TextField(blank=True, db_default="")),
            ],
            options={
                **VIEW,
                "indexes": [
                    models.Index(F("name"), F("id").desc(), name="tasks_commandrun_latest"),
                    models.Index(fields=["name"], condition=Q(outcome="running"), name="tasks_commandrun_running"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=Q(outcome="running", finished_at__isnull=True)
                        | Q(~Q(outcome="running"), finished_at__isnull=False),
                        name="tasks_commandrun_finished",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            "ExpectedCommand",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False)),
                ("every", models.DurationField()),
                ("since", models.DateTimeField(db_default=StatementTimestamp())),
                ("succeeded_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={**VIEW, "permissions": [("forget_command", "Can stop expecting a command")]},
        ),
        migrations.CreateModel(
            "AttemptLog",
            fields=[
                ID,
                ("task_id", models.BigIntegerField()),
                ("number", models.SmallIntegerField()),
                ("at", models.DateTimeField()),
                ("level", models.TextField()),
                ("message", models.TextField()),
            ],
            options={
                **VIEW,
                "db_table": "tasks_attemptlog",
                "indexes": [models.Index(fields=["task_id", "number", "id"], name="tasks_attemptlog_of_attempt")],
            },
        ),
        migrations.CreateModel(
            "Progress",
            fields=[
                ("task_id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("attempt", models.SmallIntegerField()),
                ("fraction", models.FloatField(blank=True, null=True)),
                ("message", models.TextField(blank=True, db_default="")),
                ("state", models.JSONField(blank=True, null=True)),
                ("first_fraction", models.FloatField(blank=True, null=True)),
                ("first_at", models.DateTimeField(blank=True, null=True)),
                ("updated_at", models.DateTimeField(db_default=StatementTimestamp())),
            ],
            options={
                **VIEW,
                "verbose_name_plural": "progress",
                "constraints": [
                    models.CheckConstraint(
                        condition=Q(fraction__isnull=True) | Q(fraction__gte=0, fraction__lte=1),
                        name="tasks_progress_fraction_in_range",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            "Schedule",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False)),
                ("task_path", models.TextField()),
                ("args", models.JSONField(db_default=[])),
                ("kwargs", models.JSONField(db_default={})),
                ("queue_name", models.TextField(blank=True, null=True)),
                ("priority", models.SmallIntegerField(blank=True, null=True)),
                ("cron", models.TextField(blank=True, null=True)),
                ("every_seconds", models.IntegerField(blank=True, null=True)),
                ("timezone", models.TextField(db_default="UTC")),
                (
                    "missed",
                    models.TextField(
                        choices=[("skip", "Skip them"), ("once", "One task for all"), ("all", "One task for each")],
                        db_default="skip",
                    ),
                ),
                (
                    "overlap",
                    models.TextField(
                        choices=[("skip", "Skip the tick"), ("queue", "Wait behind it"), ("allow", "Run beside it")],
                        db_default="skip",
                    ),
                ),
                ("ends_at", models.DateTimeField(blank=True, null=True)),
                ("paused", models.BooleanField(db_default=False)),
                ("paused_at", models.DateTimeField(blank=True, null=True)),
                ("paused_by", models.TextField(blank=True, db_default="")),
                ("problem", models.TextField(blank=True, db_default="")),
                ("next_at", models.DateTimeField(blank=True, null=True)),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                ("last_at", models.DateTimeField(blank=True, null=True)),
                ("last_outcome", models.TextField(blank=True, choices=OUTCOMES, db_default="")),
                ("last_task_id", models.BigIntegerField(blank=True, null=True)),
                ("held_by_task_id", models.BigIntegerField(blank=True, null=True)),
                ("declared", models.JSONField(blank=True, null=True)),
                ("version", models.IntegerField(db_default=1)),
                ("edition", models.IntegerField(db_default=1)),
                ("created_at", models.DateTimeField(db_default=StatementTimestamp())),
            ],
            options={
                **VIEW,
                "permissions": [
                    ("edit_schedule", "Can add, edit and delete schedules"),
                    ("pause_schedule", "Can pause and resume schedules"),
                    ("run_schedule", "Can run schedules now"),
                ],
                "indexes": [
                    models.Index(
                        F("next_at").asc(nulls_first=True),
                        condition=Q(paused=False, ended_at__isnull=True),
                        name="tasks_schedule_due",
                    ),
                    models.Index(F("paused_at").desc(), condition=~Q(problem=""), name="tasks_schedule_broken"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=Q(cron__isnull=False, every_seconds__isnull=True)
                        | Q(cron__isnull=True, every_seconds__isnull=False),
                        name="tasks_schedule_cron_or_every",
                    ),
                    models.CheckConstraint(
                        condition=Q(every_seconds__isnull=True) | Q(every_seconds__gte=1, every_seconds__lte=315360000),
                        name="tasks_schedule_every_in_range",
                    ),
                    models.CheckConstraint(
                        condition=Q(missed__in=("skip", "once", "all")), name="tasks_schedule_missed_known"
                    ),
                    models.CheckConstraint(
                        condition=Q(overlap__in=("skip", "queue", "allow")), name="tasks_schedule_overlap_known"
                    ),
                    models.CheckConstraint(
                        condition=Q(last_outcome__in=("", "enqueued", "skipped", "missed", "manual")),
                        name="tasks_schedule_outcome_known",
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
                        condition=Q(next_at__isnull=True) | Q(ended_at__isnull=True),
                        name="tasks_schedule_over_has_no_next",
                    ),
                    models.CheckConstraint(
                        condition=Q(next_at__isnull=True) | Q(ends_at__isnull=True) | Q(next_at__lte=F("ends_at")),
                        name="tasks_schedule_next_before_end",
                    ),
                    models.CheckConstraint(
                        condition=Q(version__gte=1, version__lte=2000000000, edition__gte=1),
                        name="tasks_schedule_version_in_range",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            "Tick",
            fields=[
                ID,
                ("schedule_name", models.TextField()),
                ("at", models.DateTimeField()),
                ("made_at", models.DateTimeField(db_default=StatementTimestamp())),
                ("outcome", models.TextField(choices=OUTCOMES)),
                ("task_id", models.BigIntegerField(blank=True, null=True)),
                ("held_by_task_id", models.BigIntegerField(blank=True, null=True)),
                ("times", models.IntegerField(db_default=1)),
            ],
            options={
                **VIEW,
                "indexes": [
                    models.Index(fields=["task_id"], condition=Q(task_id__isnull=False), name="tasks_tick_task")
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("schedule_name", "at"), name="tasks_tick_once"),
                    models.CheckConstraint(
                        condition=Q(outcome__in=["enqueued", "skipped", "missed", "manual"]),
                        name="tasks_tick_outcome_known",
                    ),
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
                ],
            },
        ),
        migrations.CreateModel(
            "ArchivedTask",
            fields=[("id", models.BigIntegerField(primary_key=True, serialize=False))],
            options={"db_table": "tasks_archive", "default_permissions": (), "managed": False},
        ),
        migrations.RunSQL(ARCHIVE, "DROP TABLE tasks_archive"),
    ]
