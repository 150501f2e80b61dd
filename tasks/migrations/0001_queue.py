"""The tables of the queue: tasks, attempts, workers, queues, limits and how many tasks finished."""

from datetime import timedelta

import django.db.models.deletion
from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models
from django.db.models import F, Q

from tasks.support.durations import StatementTimestamp

ID = ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"))
VIEW = {"default_permissions": ("view",)}
FINISHED = ("COMPLETED", "FAILED", "CANCELLED")
SLOTS_IN_RANGE = Q(max_running__isnull=True) | Q(max_running__gte=1, max_running__lte=10000)
TRACEPARENT = "^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$"
RATE_IN_RANGE = Q(rate__isnull=True, period_seconds__isnull=True) | Q(
    rate__isnull=False, period_seconds__isnull=False, rate__gte=1, rate__lte=1000000, period_seconds__gte=1
)

OBJECTIVE_IN_RANGE = Q(objective__isnull=True) | Q(
    objective__gte=timedelta(seconds=1), objective__lte=timedelta(days=366)
)


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            "Queue",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False)),
                ("paused", models.BooleanField(db_default=False)),
                ("paused_at", models.DateTimeField(blank=True, null=True)),
                ("paused_by", models.TextField(blank=True, db_default="")),
                (
                    "recovery",
                    models.TextField(choices=[("automatic", "Automatic"), ("ask", "Manual")], db_default="automatic"),
                ),
                ("max_running", models.SmallIntegerField(blank=True, null=True)),
                ("period_seconds", models.IntegerField(blank=True, null=True)),
                ("rate", models.IntegerField(blank=True, null=True)),
                ("objective", models.DurationField(blank=True, null=True)),
            ],
            options={
                **VIEW,
                "permissions": [
                    ("pause_queue", "Can pause and resume queues"),
                    ("configure_queue", "Can choose how queues recover"),
                ],
                "indexes": [
                    models.Index(
                        fields=["name"],
                        condition=Q(max_running__isnull=False) | Q(rate__isnull=False),
                        name="tasks_queue_limited",
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=Q(recovery__in=("automatic", "ask")), name="tasks_queue_recovery_known"
                    ),
                    models.CheckConstraint(condition=SLOTS_IN_RANGE, name="tasks_queue_max_running_in_range"),
                    models.CheckConstraint(condition=RATE_IN_RANGE, name="tasks_queue_rate_in_range"),
                    models.CheckConstraint(condition=OBJECTIVE_IN_RANGE, name="tasks_queue_objective_in_range"),
                ],
            },
        ),
        # By width, so that a row has no gaps: first eight bytes each, then four, then two, then texts.
        migrations.CreateModel(
            "Task",
            fields=[
                ID,
                ("created_at", models.DateTimeField(db_default=StatementTimestamp())),
                ("run_after", models.DateTimeField(db_default=StatementTimestamp())),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                ("cancel_requested_at", models.DateTimeField(blank=True, null=True)),
                ("version", models.IntegerField(db_default=1)),
                ("rate", models.IntegerField(blank=True, null=True)),
                ("period_seconds", models.IntegerField(blank=True, null=True)),
                ("priority", models.SmallIntegerField(db_default=0)),
                ("attempt", models.SmallIntegerField(db_default=0)),
                ("max_attempts", models.SmallIntegerField(db_default=5)),
                ("concurrency_limit", models.SmallIntegerField(blank=True, null=True)),
                ("slot", models.SmallIntegerField(blank=True, null=True)),
                ("queue_slot", models.SmallIntegerField(blank=True, null=True)),
                (
                    "status",
                    models.TextField(
                        choices=[
                            ("READY", "Ready"),
                            ("PROCESSING", "Processing"),
                            ("COMPLETED", "Completed"),
                            ("FAILED", "Failed"),
                            ("CANCELLED", "Cancelled"),
                        ],
                        db_default="READY",
                    ),
                ),
                ("queue_name", models.TextField(db_default="default")),
                ("task_path", models.TextField()),
                ("args", models.JSONField(db_default=[])),
                ("kwargs", models.JSONField(db_default={})),
                ("claimed_by", models.TextField(blank=True, null=True)),
                ("finished_by", models.TextField(blank=True, null=True)),
                ("ordering_key", models.TextField(blank=True, null=True)),
                ("unique_key", models.TextField(blank=True, null=True)),
                (
                    "unique_while",
                    models.TextField(
                        blank=True,
                        choices=[("q", "While it is queued"), ("a", "Until it has ended"), ("b", "Given up")],
                        null=True,
                    ),
                ),
                ("concurrency_key", models.TextField(blank=True, null=True)),
                ("rate_key", models.TextField(blank=True, null=True)),
                ("return_value", models.JSONField(blank=True, null=True)),
                ("traceparent", models.TextField(blank=True, null=True)),
            ],
            options={
                **VIEW,
                "permissions": [
                    ("requeue_task", "Can run tasks again"),
                    ("recover_task", "Can take tasks back from dead workers"),
                    ("cancel_task", "Can cancel tasks"),
                ],
                "required_db_features": ["supports_covering_indexes"],
                "indexes": [
                    models.Index(
                        F("queue_name"),
                        F("priority").desc(),
                        F("run_after"),
                        F("id"),
                        condition=Q(status="READY", ordering_key__isnull=True, concurrency_key__isnull=True),
                        name="tasks_task_claim",
                    ),
                    models.Index(
                        fields=["concurrency_key", "queue_name", "priority", "run_after", "id"],
                        condition=Q(status="READY", concurrency_key__isnull=False),
                        name="tasks_task_limited",
                    ),
                    models.Index(
                        fields=["ordering_key", "id"],
                        include=("queue_name", "run_after"),
                        condition=Q(ordering_key__isnull=False, status__in=("READY", "PROCESSING")),
                        name="tasks_task_keyed",
                    ),
                    models.Index(fields=["claimed_by"], condition=Q(status="PROCESSING"), name="tasks_task_claimed"),
                    models.Index(
                        fields=["id"],
                        include=("queue_name", "status"),
                        condition=Q(status__in=("FAILED", "CANCELLED")),
                        name="tasks_task_unsuccessful_rows",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("ordering_key",),
                        condition=Q(status="PROCESSING", ordering_key__isnull=False),
                        name="tasks_task_one_per_key",
                    ),
                    models.UniqueConstraint(
                        fields=("concurrency_key", "slot"),
                        condition=Q(status="PROCESSING", concurrency_key__isnull=False),
                        name="tasks_task_one_per_slot",
                    ),
                    models.UniqueConstraint(
                        fields=("queue_name", "queue_slot"),
                        condition=Q(status="PROCESSING", queue_slot__isnull=False),
                        name="tasks_task_one_per_queue_slot",
                    ),
                    models.UniqueConstraint(
                        fields=("unique_key",),
                        condition=Q(unique_key__isnull=False)
                        & (Q(status="READY", unique_while__in=("q", "a")) | Q(status="PROCESSING", unique_while="a")),
                        name="tasks_task_one_per_unique_key",
                    ),
                    models.CheckConstraint(
                        condition=Q(status__in=["READY", "PROCESSING", "COMPLETED", "FAILED", "CANCELLED"]),
                        name="tasks_task_status_known",
                    ),
                    models.CheckConstraint(
                        condition=Q(status="PROCESSING", claimed_by__isnull=False)
                        | Q(~Q(status="PROCESSING"), claimed_by__isnull=True),
                        name="tasks_task_claimed_iff_processing",
                    ),
                    models.CheckConstraint(
                        condition=Q(status__in=FINISHED, finished_at__isnull=False)
                        | Q(~Q(status__in=FINISHED), finished_at__isnull=True),
                        name="tasks_task_finished_at_iff_finished",
                    ),
                    models.CheckConstraint(
                        condition=~Q(status="READY") | Q(attempt__lt=F("max_attempts")),
                        name="tasks_task_ready_has_attempts",
                    ),
                    models.CheckConstraint(
                        condition=Q(attempt__gte=0, max_attempts__gte=1, attempt__lte=F("max_attempts")),
                        name="tasks_task_attempts_in_range",
                    ),
                    models.CheckConstraint(condition=Q(version__lte=2000000000), name="tasks_task_version_leaves_room"),
                    models.CheckConstraint(
                        condition=Q(priority__gte=-100, priority__lte=100), name="tasks_task_priority_in_range"
                    ),
                    models.CheckConstraint(
                        condition=~Q(task_path="")
                        & ~Q(queue_name="")
                        & (Q(ordering_key__isnull=True) | ~Q(ordering_key="")),
                        name="tasks_task_names_not_empty",
                    ),
                    models.CheckConstraint(
                        condition=Q(traceparent__regex=TRACEPARENT), name="tasks_task_traceparent_form"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            "Attempt",
            fields=[
                ID,
                ("number", models.SmallIntegerField()),
                ("worker_id", models.TextField()),
                (
                    "outcome",
                    models.TextField(
                        choices=[
                            ("failed", "Failed"),
                            ("abandoned", "Abandoned"),
                            ("timed_out", "Timed out"),
                            ("released", "Released"),
                        ]
                    ),
                ),
                ("exception_class", models.TextField(blank=True, db_default="")),
                ("traceback", models.TextField(blank=True, db_default="")),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                ("finished_at", models.DateTimeField(db_default=StatementTimestamp())),
                (
                    "task",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="attempts",
                        to="tasks.task",
                    ),
                ),
                ("queue_name", models.TextField(blank=True, db_default="")),
                ("release", models.TextField(blank=True, db_default="")),
                ("fingerprint", models.TextField(blank=True, db_collation="C", db_default="")),
                ("traceparent", models.TextField(blank=True, null=True)),
            ],
            options={
                **VIEW,
                "required_db_features": ["supports_covering_indexes"],
                "indexes": [
                    models.Index(
                        fields=["fingerprint", "finished_at"],
                        include=("queue_name", "release"),
                        name="tasks_attempt_failures",
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=Q(traceparent__regex=TRACEPARENT), name="tasks_attempt_traceparent_form"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            "Worker",
            fields=[
                ("id", models.TextField(primary_key=True, serialize=False)),
                ("hostname", models.TextField()),
                ("pid", models.IntegerField()),
                ("strategy", models.TextField(db_default="skip_locked")),
                ("queues", ArrayField(models.TextField(), blank=True, db_default=[])),
                ("task_paths", ArrayField(models.TextField(), blank=True, db_default=[])),
                ("started_at", models.DateTimeField(db_default=StatementTimestamp())),
                ("heartbeat_at", models.DateTimeField(db_default=StatementTimestamp())),
                ("lease_seconds", models.FloatField(blank=True, null=True)),
                ("presence_epoch", models.TextField(blank=True, null=True)),
                ("missing_since", models.DateTimeField(blank=True, null=True)),
                ("current_task_id", models.BigIntegerField(blank=True, null=True)),
                ("current_since", models.DateTimeField(blank=True, null=True)),
                ("stop_requested_at", models.DateTimeField(blank=True, null=True)),
                ("stopped_at", models.DateTimeField(blank=True, null=True)),
                ("stop_reason", models.TextField(blank=True, db_default="")),
                ("running_ids", ArrayField(models.BigIntegerField(), blank=True, db_default=[])),
            ],
            options={
                **VIEW,
                "permissions": [("stop_worker", "Can ask workers to stop")],
                "indexes": [
                    models.Index(fields=["id"], condition=Q(stopped_at__isnull=True), name="tasks_worker_unstopped")
                ],
            },
        ),
        migrations.CreateModel(
            "RefusedWrite",
            fields=[
                ID,
                ("task_id", models.BigIntegerField(db_index=True)),
                ("worker_id", models.TextField()),
                ("expected_version", models.IntegerField()),
                ("actual_version", models.IntegerField(blank=True, null=True)),
                ("intent", models.TextField()),
                ("at", models.DateTimeField(db_default=StatementTimestamp())),
            ],
            options=VIEW,
        ),
        migrations.CreateModel(
            "Epoch",
            fields=[
                ("id", models.SmallIntegerField(db_default=1, primary_key=True, serialize=False)),
                ("token", models.TextField()),
                ("first_seen_at", models.DateTimeField()),
            ],
            options={**VIEW, "constraints": [models.CheckConstraint(condition=Q(id=1), name="tasks_epoch_one_row")]},
        ),
        migrations.CreateModel(
            "RecoveryFailure",
            fields=[
                ("target", models.TextField(primary_key=True, serialize=False)),
                ("task_id", models.BigIntegerField(blank=True, null=True)),
                ("worker_id", models.TextField(blank=True, db_default="")),
                ("error", models.TextField()),
                ("tries", models.IntegerField(db_default=1)),
                ("since", models.DateTimeField(db_default=StatementTimestamp())),
                ("retry_at", models.DateTimeField()),
            ],
            options=VIEW,
        ),
        migrations.CreateModel(
            "Throughput",
            fields=[
                ID,
                ("minute", models.DateTimeField()),
                ("queue_name", models.TextField()),
                ("shard", models.SmallIntegerField()),
                ("completed", models.IntegerField(db_default=0)),
                ("failed", models.IntegerField(db_default=0)),
                ("run_ms", models.BigIntegerField(db_default=0)),
                ("wait_ms", models.BigIntegerField(db_default=0)),
                ("run_buckets", ArrayField(models.IntegerField(), blank=True, db_default=[])),
                ("wait_buckets", ArrayField(models.IntegerField(), blank=True, db_default=[])),
            ],
            options={
                **VIEW,
                "constraints": [
                    models.UniqueConstraint(fields=("minute", "queue_name", "shard"), name="tasks_throughput_row")
                ],
            },
        ),
        migrations.CreateModel(
            "ThroughputSlot",
            fields=[
                ID,
                ("at", models.DateTimeField()),
                ("queue_name", models.TextField()),
                ("completed", models.IntegerField(db_default=0)),
                ("failed", models.IntegerField(db_default=0)),
                ("run_buckets", ArrayField(models.IntegerField(), blank=True, db_default=[])),
                ("wait_buckets", ArrayField(models.IntegerField(), blank=True, db_default=[])),
            ],
            options={
                **VIEW,
                "constraints": [models.UniqueConstraint(fields=("at", "queue_name"), name="tasks_throughputslot_row")],
            },
        ),
        migrations.CreateModel(
            "ThroughputTotal",
            fields=[
                ("queue_name", models.TextField(primary_key=True, serialize=False)),
                ("folded_until", models.DateTimeField()),
                ("completed", models.BigIntegerField(db_default=0)),
                ("failed", models.BigIntegerField(db_default=0)),
                ("run_ms", models.BigIntegerField(db_default=0)),
                ("wait_ms", models.BigIntegerField(db_default=0)),
                ("run_buckets", ArrayField(models.BigIntegerField(), blank=True, db_default=[])),
                ("wait_buckets", ArrayField(models.BigIntegerField(), blank=True, db_default=[])),
            ],
            options=VIEW,
        ),
        migrations.CreateModel(
            "Limit",
            fields=[
                ("key", models.TextField(primary_key=True, serialize=False)),
                ("max_running", models.SmallIntegerField(blank=True, null=True)),
                ("rate", models.IntegerField(blank=True, null=True)),
                ("period_seconds", models.IntegerField(blank=True, null=True)),
                ("paused", models.BooleanField(db_default=False)),
                ("paused_at", models.DateTimeField(blank=True, null=True)),
                ("paused_by", models.TextField(blank=True, db_default="")),
            ],
            options={
                **VIEW,
                "permissions": [("configure_limit", "Can change and pause limits")],
                "constraints": [
                    models.CheckConstraint(condition=SLOTS_IN_RANGE, name="tasks_limit_max_running_in_range"),
                    models.CheckConstraint(condition=RATE_IN_RANGE, name="tasks_limit_rate_in_range"),
                ],
            },
        ),
        migrations.CreateModel(
            "Bucket",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False)),
                ("next_at", models.DateTimeField()),
            ],
            options=VIEW,
        ),
    ]
