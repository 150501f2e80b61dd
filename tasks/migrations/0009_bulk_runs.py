"""Actions on everything that matches a filter, and the forms that were submitted once."""

from django.db import migrations, models

import tasks.support.durations


class Migration(migrations.Migration):
    dependencies = [
        ("tasks", "0008_latency_buckets"),
    ]

    operations = [
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
    ]
