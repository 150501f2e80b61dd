"""The tables of the queue: tasks, attempts, workers, queues and how many tasks finished."""

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models

import tasks.support.durations


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Queue",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False)),
                ("paused", models.BooleanField(db_default=False)),
                ("paused_at", models.DateTimeField(blank=True, null=True)),
                ("paused_by", models.TextField(blank=True, db_default="")),
                (
                    "recovery",
                    models.TextField(choices=[("automatic", "Automatic"), ("ask", "Manual")], db_default="automatic"),
                ),
            ],
            options={
                "permissions": [
                    ("pause_queue", "Can pause and resume queues"),
                    ("configure_queue", "Can choose how queues recover"),
                ],
                "default_permissions": ("view",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("recovery__in", ("automatic", "ask"))), name="tasks_queue_recovery_known"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Task",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("task_path", models.TextField()),
                ("queue_name", models.TextField(db_default="default")),
                ("priority", models.SmallIntegerField(db_default=0)),
                ("args", models.JSONField(db_default=[])),
                ("kwargs", models.JSONField(db_default={})),
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
                ("version", models.IntegerField(db_default=1)),
                ("created_at", models.DateTimeField(db_default=tasks.support.durations.StatementTimestamp())),
                ("run_after", models.DateTimeField(db_default=tasks.support.durations.StatementTimestamp())),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                ("attempt", models.SmallIntegerField(db_default=0)),
                ("max_attempts", models.SmallIntegerField(db_default=5)),
                ("claimed_by", models.TextField(blank=True, null=True)),
                ("finished_by", models.TextField(blank=True, null=True)),
                ("ordering_key", models.TextField(blank=True, null=True)),
                ("return_value", models.JSONField(blank=True, null=True)),
                ("cancel_requested_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "permissions": [
                    ("requeue_task", "Can run tasks again"),
                    ("recover_task", "Can take tasks back from dead workers"),
                    ("cancel_task", "Can cancel tasks"),
                ],
                "default_permissions": ("view",),
                "required_db_features": ["supports_covering_indexes"],
                "indexes": [
                    models.Index(
                        models.F("queue_name"),
                        models.OrderBy(models.F("priority"), descending=True),
                        models.F("run_after"),
                        models.F("id"),
                        condition=models.Q(("ordering_key__isnull", True), ("status", "READY")),
                        name="tasks_task_claim",
                    ),
                    models.Index(
                        condition=models.Q(("ordering_key__isnull", False), ("status__in", ("READY", "PROCESSING"))),
                        fields=["ordering_key", "id"],
                        include=("queue_name", "run_after"),
                        name="tasks_task_keyed",
                    ),
                    models.Index(
                        condition=models.Q(("status", "PROCESSING")), fields=["claimed_by"], name="tasks_task_claimed"
                    ),
                    models.Index(
                        condition=models.Q(("status__in", ("FAILED", "CANCELLED"))),
                        fields=["id"],
                        include=("queue_name", "status"),
                        name="tasks_task_unsuccessful_rows",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("ordering_key__isnull", False), ("status", "PROCESSING")),
                        fields=("ordering_key",),
                        name="tasks_task_one_per_key",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("status__in", ["READY", "PROCESSING", "COMPLETED", "FAILED", "CANCELLED"])),
                        name="tasks_task_status_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("claimed_by__isnull", False), ("status", "PROCESSING")),
                            models.Q(models.Q(("status", "PROCESSING"), _negated=True), ("claimed_by__isnull", True)),
                            _connector="OR",
                        ),
                        name="tasks_task_claimed_iff_processing",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("finished_at__isnull", False), ("status__in", ("COMPLETED", "FAILED", "CANCELLED"))
                            ),
                            models.Q(
                                models.Q(("status__in", ("COMPLETED", "FAILED", "CANCELLED")), _negated=True),
                                ("finished_at__isnull", True),
                            ),
                            _connector="OR",
                        ),
                        name="tasks_task_finished_at_iff_finished",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("status", "READY"), _negated=True),
                            ("attempt__lt", models.F("max_attempts")),
                            _connector="OR",
                        ),
                        name="tasks_task_ready_has_attempts",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("attempt__gte", 0), ("attempt__lte", models.F("max_attempts")), ("max_attempts__gte", 1)
                        ),
                        name="tasks_task_attempts_in_range",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("version__lte", 2000000000)), name="tasks_task_version_leaves_room"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("priority__gte", -100), ("priority__lte", 100)),
                        name="tasks_task_priority_in_range",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("task_path", ""), _negated=True),
                            models.Q(("queue_name", ""), _negated=True),
                            models.Q(
                                ("ordering_key__isnull", True),
                                models.Q(("ordering_key", ""), _negated=True),
                                _connector="OR",
                            ),
                        ),
                        name="tasks_task_names_not_empty",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Attempt",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
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
                ("finished_at", models.DateTimeField(db_default=tasks.support.durations.StatementTimestamp())),
                (
                    "task",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="attempts",
                        to="tasks.task",
                    ),
                ),
            ],
            options={
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Worker",
            fields=[
                ("id", models.TextField(primary_key=True, serialize=False)),
                ("hostname", models.TextField()),
                ("pid", models.IntegerField()),
                ("strategy", models.TextField(db_default="skip_locked")),
                (
                    "queues",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.TextField(), blank=True, db_default=[], size=None
                    ),
                ),
                (
                    "task_paths",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.TextField(), blank=True, db_default=[], size=None
                    ),
                ),
                ("started_at", models.DateTimeField(db_default=tasks.support.durations.StatementTimestamp())),
                ("heartbeat_at", models.DateTimeField(db_default=tasks.support.durations.StatementTimestamp())),
                ("lease_seconds", models.FloatField(blank=True, null=True)),
                ("presence_epoch", models.TextField(blank=True, null=True)),
                ("missing_since", models.DateTimeField(blank=True, null=True)),
                ("current_task_id", models.BigIntegerField(blank=True, null=True)),
                ("current_since", models.DateTimeField(blank=True, null=True)),
                ("stop_requested_at", models.DateTimeField(blank=True, null=True)),
                ("stopped_at", models.DateTimeField(blank=True, null=True)),
                ("stop_reason", models.TextField(blank=True, db_default="")),
            ],
            options={
                "permissions": [("stop_worker", "Can ask workers to stop")],
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("stopped_at__isnull", True)), fields=["id"], name="tasks_worker_unstopped"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="RefusedWrite",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("task_id", models.BigIntegerField(db_index=True)),
                ("worker_id", models.TextField()),
                ("expected_version", models.IntegerField()),
                ("actual_version", models.IntegerField(blank=True, null=True)),
                ("intent", models.TextField()),
                ("at", models.DateTimeField(db_default=tasks.support.durations.StatementTimestamp())),
            ],
            options={
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Epoch",
            fields=[
                ("id", models.SmallIntegerField(db_default=1, primary_key=True, serialize=False)),
                ("token", models.TextField()),
                ("first_seen_at", models.DateTimeField()),
            ],
            options={
                "default_permissions": ("view",),
                "constraints": [models.CheckConstraint(condition=models.Q(("id", 1)), name="tasks_epoch_one_row")],
            },
        ),
        migrations.CreateModel(
            name="RecoveryFailure",
            fields=[
                ("target", models.TextField(primary_key=True, serialize=False)),
                ("task_id", models.BigIntegerField(blank=True, null=True)),
                ("worker_id", models.TextField(blank=True, db_default="")),
                ("error", models.TextField()),
                ("tries", models.IntegerField(db_default=1)),
                ("since", models.DateTimeField(db_default=tasks.support.durations.StatementTimestamp())),
                ("retry_at", models.DateTimeField()),
            ],
            options={
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Throughput",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("minute", models.DateTimeField()),
                ("queue_name", models.TextField()),
                ("shard", models.SmallIntegerField()),
                ("completed", models.IntegerField(db_default=0)),
                ("failed", models.IntegerField(db_default=0)),
                ("run_ms", models.BigIntegerField(db_default=0)),
                ("wait_ms", models.BigIntegerField(db_default=0)),
                (
                    "run_buckets",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.IntegerField(), blank=True, db_default=[], size=None
                    ),
                ),
                (
                    "wait_buckets",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.IntegerField(), blank=True, db_default=[], size=None
                    ),
                ),
            ],
            options={
                "default_permissions": ("view",),
                "constraints": [
                    models.UniqueConstraint(fields=("minute", "queue_name", "shard"), name="tasks_throughput_row")
                ],
            },
        ),
        migrations.CreateModel(
            name="ThroughputSlot",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField()),
                ("queue_name", models.TextField()),
                ("completed", models.IntegerField(db_default=0)),
                ("failed", models.IntegerField(db_default=0)),
                (
                    "run_buckets",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.IntegerField(), blank=True, db_default=[], size=None
                    ),
                ),
                (
                    "wait_buckets",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.IntegerField(), blank=True, db_default=[], size=None
                    ),
                ),
            ],
            options={
                "default_permissions": ("view",),
                "constraints": [models.UniqueConstraint(fields=("at", "queue_name"), name="tasks_throughputslot_row")],
            },
        ),
        migrations.CreateModel(
            name="ThroughputTotal",
            fields=[
                ("queue_name", models.TextField(primary_key=True, serialize=False)),
                ("folded_until", models.DateTimeField()),
                ("completed", models.BigIntegerField(db_default=0)),
                ("failed", models.BigIntegerField(db_default=0)),
                ("run_ms", models.BigIntegerField(db_default=0)),
                ("wait_ms", models.BigIntegerField(db_default=0)),
                (
                    "run_buckets",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(), blank=True, db_default=[], size=None
                    ),
                ),
                (
                    "wait_buckets",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(), blank=True, db_default=[], size=None
                    ),
                ),
            ],
            options={
                "default_permissions": ("view",),
            },
        ),
    ]
