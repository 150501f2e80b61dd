"""Thresholds of "Needs attention" that people set, the sizes of our tables, and how sending to channels went."""

from functools import reduce
from operator import or_

from django.db import migrations, models
from django.db.models import Q

from tasks.support.durations import StatementTimestamp

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
IN_RANGE = reduce(or_, (Q(name=name, value__gte=least, value__lte=greatest) for name, least, greatest in RANGES))


class Migration(migrations.Migration):
    dependencies = [("dashboard", "0002_alerts")]

    operations = [
        migrations.AddField("AlertChannel", "sent_at", models.DateTimeField(blank=True, null=True)),
        migrations.AddField("AlertChannel", "failed_at", models.DateTimeField(blank=True, null=True)),
        migrations.AddField("AlertChannel", "failure", models.TextField(blank=True, db_default="")),
        migrations.CreateModel(
            "Threshold",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False)),
                ("value", models.BigIntegerField()),
                ("actor", models.TextField()),
                ("at", models.DateTimeField(db_default=StatementTimestamp())),
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
                ("at", models.DateTimeField(db_default=StatementTimestamp(), db_index=True)),
                ("name", models.TextField()),
                ("bytes", models.BigIntegerField()),
            ],
            options={
                "default_permissions": (),
                "constraints": [
                    models.CheckConstraint(condition=Q(bytes__gte=0), name="dashboard_tablesize_not_negative")
                ],
            },
        ),
    ]
