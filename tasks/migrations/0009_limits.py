"""Limits of keys and queues: tables, columns and the indexes that make a slot true."""

from django.db import migrations, models

READABLE_KEYS = """
ALTER TABLE tasks_limit ADD CONSTRAINT tasks_limit_key_readable CHECK (
    length(key) BETWEEN 1 AND 255 AND key COLLATE "C" !~ '[\\u0001-\\u001f\\u007f-\\u009f]');
"""
ANY_KEY = "ALTER TABLE tasks_limit DROP CONSTRAINT tasks_limit_key_readable;"
# A bucket is written by every claim of its rate, in place.
STORAGE = """
ALTER TABLE tasks_bucket SET (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
"""
PLAIN = "ALTER TABLE tasks_bucket RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold);"


class Migration(migrations.Migration):
    dependencies = [
        ("tasks", "0008_keys"),
    ]

    operations = [
        migrations.CreateModel(
            name="Bucket",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False)),
                ("next_at", models.DateTimeField()),
            ],
            options={
                "abstract": False,
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Limit",
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
                "permissions": [("configure_limit", "Can change and pause limits")],
                "abstract": False,
                "default_permissions": ("view",),
            },
        ),
        migrations.RemoveIndex(
            model_name="task",
            name="tasks_task_claim",
        ),
        migrations.AddField(
            model_name="queue",
            name="max_running",
            field=models.SmallIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="queue",
            name="period_seconds",
            field=models.IntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="queue",
            name="rate",
            field=models.IntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="task",
            name="period_seconds",
            field=models.IntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="task",
            name="queue_slot",
            field=models.SmallIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="task",
            name="rate",
            field=models.IntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="task",
            name="rate_key",
            field=models.TextField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="task",
            name="slot",
            field=models.SmallIntegerField(blank=True, null=True),
        ),
        migrations.AddIndex(
            model_name="queue",
            index=models.Index(
                condition=models.Q(("max_running__isnull", False), ("rate__isnull", False), _connector="OR"),
                fields=["name"],
                name="tasks_queue_limited",
            ),
        ),
        migrations.AddIndex(
            model_name="task",
            index=models.Index(
                models.F("queue_name"),
                models.OrderBy(models.F("priority"), descending=True),
                models.F("run_after"),
                models.F("id"),
                condition=models.Q(
                    ("concurrency_key__isnull", True), ("ordering_key__isnull", True), ("status", "READY")
                ),
                name="tasks_task_claim",
            ),
        ),
        migrations.AddIndex(
            model_name="task",
            index=models.Index(
                condition=models.Q(("concurrency_key__isnull", False), ("status", "READY")),
                fields=["concurrency_key", "queue_name", "priority", "run_after", "id"],
                name="tasks_task_limited",
            ),
        ),
        migrations.AddConstraint(
            model_name="queue",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("max_running__isnull", True),
                    models.Q(("max_running__gte", 1), ("max_running__lte", 10000)),
                    _connector="OR",
                ),
                name="tasks_queue_max_running_in_range",
            ),
        ),
        migrations.AddConstraint(
            model_name="queue",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("period_seconds__isnull", True), ("rate__isnull", True)),
                    models.Q(
                        ("period_seconds__gte", 1),
                        ("period_seconds__isnull", False),
                        ("rate__gte", 1),
                        ("rate__isnull", False),
                        ("rate__lte", 1000000),
                    ),
                    _connector="OR",
                ),
                name="tasks_queue_rate_in_range",
            ),
        ),
        migrations.AddConstraint(
            model_name="task",
            constraint=models.UniqueConstraint(
                condition=models.Q(("concurrency_key__isnull", False), ("status", "PROCESSING")),
                fields=("concurrency_key", "slot"),
                name="tasks_task_one_per_slot",
            ),
        ),
        migrations.AddConstraint(
            model_name="task",
            constraint=models.UniqueConstraint(
                condition=models.Q(("queue_slot__isnull", False), ("status", "PROCESSING")),
                fields=("queue_name", "queue_slot"),
                name="tasks_task_one_per_queue_slot",
            ),
        ),
        migrations.AddConstraint(
            model_name="limit",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("max_running__isnull", True),
                    models.Q(("max_running__gte", 1), ("max_running__lte", 10000)),
                    _connector="OR",
                ),
                name="tasks_limit_max_running_in_range",
            ),
        ),
        migrations.AddConstraint(
            model_name="limit",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("period_seconds__isnull", True), ("rate__isnull", True)),
                    models.Q(
                        ("period_seconds__gte", 1),
                        ("period_seconds__isnull", False),
                        ("rate__gte", 1),
                        ("rate__isnull", False),
                        ("rate__lte", 1000000),
                    ),
                    _connector="OR",
                ),
                name="tasks_limit_rate_in_range",
            ),
        ),
        migrations.RunSQL(READABLE_KEYS, ANY_KEY),
        migrations.RunSQL(STORAGE, PLAIN),
    ]
