"""The tables of alerts and of *Needs attention*: channels, incidents, thresholds, and the sizes of tables."""

from functools import reduce
from operator import or_

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models

import tasks.support.durations

# Programs that may only enqueue cannot have an alert sent.
REFUSE_ALERT = """
CREATE TRIGGER rowlock_refuse_internal_alert BEFORE INSERT ON tasks_task
    FOR EACH ROW WHEN (NEW.task_path = 'dashboard.tasks.send_alert') EXECUTE FUNCTION rowlock_refuse_internal();
"""
NO_REFUSAL = "DROP TRIGGER rowlock_refuse_internal_alert ON tasks_task;"
RANGES = (
    ("blocked_seconds", 1, 3600),
    ("blocked_sessions", 1, 1000),
    ("blocked_long_seconds", 1, 86400),
    ("idle_seconds", 1, 86400),
    ("open_seconds", 10, 604800),
    ("held_transactions", 1000, 1000000000),
    ("connections_percent", 10, 100),
    ("late_seconds", 1, 604800),
    ("failed_percent", 1, 100),
    ("failed_attempts", 1, 1000000),
    ("failed_seconds", 300, 3600),
    ("grown_percent", 1, 10000),
    ("grown_megabytes", 1, 100000000),
)
IN_RANGE = reduce(or_, (models.Q(name=name, value__gte=least, value__lte=greatest) for name, least, greatest in RANGES))


class Migration(migrations.Migration):
    dependencies = [
        ("dashboard", "0001_tables"),
    ]

    operations = [
        migrations.CreateModel(
            name="AlertChannel",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.TextField(unique=True)),
                ("sealed_address", models.TextField(editable=False)),
                ("least_severity", models.SmallIntegerField(db_default=3, default=3)),
                (
                    "queues",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.TextField(), blank=True, db_default=[], default=list, size=None
                    ),
                ),
                (
                    "kinds",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.TextField(), blank=True, db_default=[], default=list, size=None
                    ),
                ),
                ("enabled", models.BooleanField(db_default=True, default=True)),
                ("sent_at", models.DateTimeField(blank=True, null=True)),
                ("failed_at", models.DateTimeField(blank=True, null=True)),
                ("failure", models.TextField(blank=True, db_default="")),
            ],
            options={
                "default_permissions": ("add", "change", "delete", "view"),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("least_severity__range", (1, 4))), name="dashboard_alertchannel_severity"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("sealed_address__startswith", "gAAAA")),
                        name="dashboard_alertchannel_sealed",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Incident",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("line", models.TextField()),
                ("kind", models.TextField()),
                ("severity", models.SmallIntegerField()),
                ("title", models.TextField()),
                ("detail", models.TextField(blank=True, db_default="")),
                ("url", models.TextField(blank=True, db_default="")),
                ("size", models.BigIntegerField()),
                ("opened_at", models.DateTimeField(db_default=tasks.support.durations.StatementTimestamp())),
                ("grew_at", models.DateTimeField(blank=True, null=True)),
                ("gone_since", models.DateTimeField(blank=True, null=True)),
                ("resolved_at", models.DateTimeField(blank=True, null=True)),
                (
                    "storm",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="members",
                        to="dashboard.incident",
                    ),
                ),
            ],
            options={
                "default_permissions": ("view",),
                "indexes": [models.Index(fields=["resolved_at"], name="dashboard_incident_resolved")],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("resolved_at__isnull", True)),
                        fields=("line",),
                        name="dashboard_incident_one_open",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            "Threshold",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False)),
                ("value", models.BigIntegerField()),
                ("actor", models.TextField()),
                ("at", models.DateTimeField(db_default=tasks.support.durations.StatementTimestamp())),
            ],
            options={
                "default_permissions": (),
                "permissions": [("configure_alerts", "Can change alert channels and thresholds")],
                "constraints": [
                    models.CheckConstraint(condition=IN_RANGE, name="dashboard_threshold_known_and_in_range")
                ],
            },
        ),
        migrations.CreateModel(
            "TableSize",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField(db_default=tasks.support.durations.StatementTimestamp(), db_index=True)),
                ("name", models.TextField()),
                ("bytes", models.BigIntegerField()),
            ],
            options={
                "default_permissions": (),
                "constraints": [
                    models.CheckConstraint(condition=models.Q(bytes__gte=0), name="dashboard_tablesize_not_negative")
                ],
            },
        ),
        migrations.RunSQL(REFUSE_ALERT, NO_REFUSAL),
    ]
