"""The tables of what operators and commands do: audit, bulk runs, named locks, command runs."""

import django.contrib.postgres.fields
from django.db import migrations, models

import tasks.support.durations


class Migration(migrations.Migration):
    dependencies = [("tasks", "0001_queue")]

    operations = [
        migrations.CreateModel(
            name="Intervention",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField(db_default=tasks.support.durations.StatementTimestamp())),
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
                "default_permissions": ("view",),
                "indexes": [models.Index(fields=["actor", "id"], name="tasks_intervention_actor")],
            },
        ),
        migrations.CreateModel(
            name="BulkRun",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("action", models.TextField()),
                ("options", models.JSONField(blank=True, db_default={})),
                ("filter", models.TextField(blank=True)),
                ("upto", models.BigIntegerField()),
                ("actor", models.TextField()),
                ("task_id", models.BigIntegerField(blank=True, db_index=True, null=True)),
                ("created_at", models.DateTimeField(db_default=tasks.support.durations.StatementTimestamp())),
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
                "permissions": [
                    ("edit_task", "Can move tasks to another queue, priority or time"),
                    ("enqueue_task", "Can enqueue tasks by hand"),
                    ("run_burst", "Can start a worker on the web server's host"),
                ],
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="SubmittedForm",
            fields=[
                ("token", models.TextField(primary_key=True, serialize=False)),
                ("target", models.TextField(blank=True, db_default="")),
                ("at", models.DateTimeField(db_default=tasks.support.durations.StatementTimestamp(), db_index=True)),
            ],
            options={
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Lock",
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
                "permissions": [("release_lock", "Can release locks whose holder is gone")],
                "default_permissions": ("view",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("expires_at__isnull", True), ("owner__isnull", True)),
                            models.Q(
                                ("acquired_at__isnull", False), ("expires_at__isnull", False), ("owner__isnull", False)
                            ),
                            _connector="OR",
                        ),
                        name="tasks_lock_held_until",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="LockWaiter",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.TextField()),
                ("owner", models.TextField(unique=True)),
                ("hostname", models.TextField(blank=True, db_default="")),
                ("pid", models.IntegerField(blank=True, null=True)),
                (
                    "holds",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(), blank=True, db_default=[], size=None
                    ),
                ),
                ("since", models.DateTimeField(db_default=tasks.support.durations.StatementTimestamp())),
            ],
            options={
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="CommandRun",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.TextField()),
                ("argv", django.contrib.postgres.fields.ArrayField(base_field=models.TextField(), size=None)),
                ("hostname", models.TextField(blank=True, db_default="")),
                ("pid", models.IntegerField(blank=True, null=True)),
                ("fence", models.BigIntegerField(blank=True, null=True)),
                ("held_by", models.TextField(blank=True, db_default="")),
                ("started_at", models.DateTimeField(db_default=tasks.support.durations.StatementTimestamp())),
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
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(
                        models.F("name"),
                        models.OrderBy(models.F("id"), descending=True),
                        name="tasks_commandrun_latest",
                    ),
                    models.Index(
                        condition=models.Q(("outcome", "running")), fields=["name"], name="tasks_commandrun_running"
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("finished_at__isnull", True), ("outcome", "running")),
                            models.Q(models.Q(("outcome", "running"), _negated=True), ("finished_at__isnull", False)),
                            _connector="OR",
                        ),
                        name="tasks_commandrun_finished",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="ExpectedCommand",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False)),
                ("every", models.DurationField()),
                ("since", models.DateTimeField(db_default=tasks.support.durations.StatementTimestamp())),
                ("succeeded_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "permissions": [("forget_command", "Can stop expecting a command")],
                "default_permissions": ("view",),
            },
        ),
    ]
