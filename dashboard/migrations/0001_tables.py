"""The tables of the pages: acknowledgements, lock history, saved views, runs of the lab, rows of the demo."""

import django.contrib.postgres.fields.ranges
import django.contrib.postgres.indexes
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

import dashboard.models.locks
import tasks.support.durations

# Programs that may only enqueue cannot start a run of the lab: only its page may.
REFUSE_LAB = """
CREATE TRIGGER rowlock_refuse_internal_lab BEFORE INSERT ON tasks_task
    FOR EACH ROW WHEN (NEW.task_path = 'dashboard.tasks.run_lab') EXECUTE FUNCTION rowlock_refuse_internal();
"""
NO_REFUSAL = "DROP TRIGGER rowlock_refuse_internal_lab ON tasks_task;"


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("tasks", "0003_guards"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Backend",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
            ],
            options={
                "permissions": [("signal_backend", "Can cancel and terminate database sessions")],
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Deadlocks",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField(db_default=tasks.support.durations.StatementTimestamp(), db_index=True)),
                ("number", models.BigIntegerField()),
                ("total", models.BigIntegerField()),
            ],
            options={
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="LabRun",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("batch", models.TextField(db_index=True)),
                ("pattern", models.TextField()),
                ("plan", models.JSONField()),
                (
                    "state",
                    models.TextField(
                        choices=[
                            ("waiting", "Waiting"),
                            ("running", "Running"),
                            ("finished", "Finished"),
                            ("failed", "Failed"),
                        ],
                        db_default="waiting",
                        default="waiting",
                    ),
                ),
                ("actor", models.TextField()),
                ("task_id", models.BigIntegerField(blank=True, null=True)),
                ("schema", models.TextField(blank=True, db_default="")),
                ("effects", models.IntegerField(db_default=0)),
                ("error", models.TextField(blank=True, db_default="")),
                ("result", models.JSONField(blank=True, null=True)),
                ("spans", models.JSONField(blank=True, null=True)),
                ("statements", models.JSONField(blank=True, null=True)),
                ("waits", models.JSONField(blank=True, null=True)),
                ("server", models.TextField(blank=True, db_default="")),
                ("created_at", models.DateTimeField(db_default=tasks.support.durations.StatementTimestamp())),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                ("stop_requested_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "permissions": [("run_pattern", "Can run patterns in the lab")],
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Acknowledgement",
            fields=[
                ("line", models.TextField(primary_key=True, serialize=False)),
                ("text", models.TextField(blank=True, db_default="")),
                ("actor", models.TextField()),
                ("reason", models.TextField()),
                ("at", models.DateTimeField(db_default=tasks.support.durations.StatementTimestamp())),
                ("until", models.DateTimeField(blank=True, null=True)),
                ("size", models.BigIntegerField(blank=True, null=True)),
            ],
            options={
                "permissions": [("acknowledge", "Can acknowledge what needs attention")],
                "default_permissions": ("view",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("until__isnull", False), ("size__isnull", False), _connector="OR"),
                        name="dashboard_acknowledgement_ends",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="DemoRow",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "kind",
                    models.TextField(
                        choices=[
                            ("task", "Task"),
                            ("order", "Order"),
                            ("account", "Account"),
                            ("user", "User"),
                            ("queue", "Queue"),
                            ("command", "Command"),
                        ]
                    ),
                ),
                ("row_id", models.BigIntegerField(db_default=0)),
                ("name", models.TextField(blank=True, db_default="")),
            ],
            options={
                "permissions": [("direct_demo", "Can direct and remove the demo")],
                "default_permissions": ("view",),
                "constraints": [
                    models.UniqueConstraint(fields=("kind", "row_id", "name"), name="dashboard_demorow_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="LockWait",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("pair", models.TextField(unique=True)),
                ("waiting_since", models.DateTimeField()),
                ("last_seen", models.DateTimeField(db_default=tasks.support.durations.StatementTimestamp())),
                ("locktype", models.TextField()),
                ("mode", models.TextField(blank=True, db_default="")),
                ("target", models.TextField(blank=True, db_default="")),
                ("blocked_pid", models.IntegerField()),
                ("blocked_who", models.TextField(blank=True, db_default="")),
                ("blocked_task", models.BigIntegerField(blank=True, null=True)),
                ("blocked_query", models.TextField(blank=True, db_default="")),
                ("blocker_pid", models.IntegerField()),
                ("blocker_who", models.TextField(blank=True, db_default="")),
                ("blocker_task", models.BigIntegerField(blank=True, null=True)),
                ("blocker_state", models.TextField(blank=True, db_default="")),
                ("blocker_query", models.TextField(blank=True, db_default="")),
                ("blocker_since", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "default_permissions": ("view",),
                "indexes": [
                    django.contrib.postgres.indexes.GistIndex(
                        dashboard.models.locks.TsTzRange(
                            "waiting_since",
                            "last_seen",
                            django.contrib.postgres.fields.ranges.RangeBoundary(inclusive_upper=True),
                        ),
                        name="dashboard_lockwait_when",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="SavedView",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.TextField()),
                ("query", models.TextField()),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to=settings.AUTH_USER_MODEL
                    ),
                ),
            ],
            options={
                "default_permissions": ("view",),
                "constraints": [
                    models.UniqueConstraint(fields=("user", "name"), name="dashboard_savedview_one_of_a_name")
                ],
            },
        ),
        migrations.RunSQL(REFUSE_LAB, NO_REFUSAL),
    ]
