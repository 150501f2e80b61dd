"""The tables of alerts: channels and incidents."""

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
        migrations.RunSQL(REFUSE_ALERT, NO_REFUSAL),
    ]
