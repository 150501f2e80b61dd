"""Progress and log lines of running tasks. Deleted tasks take theirs along."""

from django.db import migrations, models

import tasks.support.durations

# One statement for all deleted rows, as a foreign key would look for each of them.
FOLLOW = """
CREATE FUNCTION rowlock_forget_reports() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM tasks_progress USING gone WHERE tasks_progress.task_id = gone.id;
    DELETE FROM tasks_attemptlog USING gone WHERE tasks_attemptlog.task_id = gone.id;
    RETURN NULL;
END $$;
CREATE TRIGGER rowlock_forget_reports AFTER DELETE ON tasks_task
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION rowlock_forget_reports();
"""
STAY = "DROP TRIGGER rowlock_forget_reports ON tasks_task; DROP FUNCTION rowlock_forget_reports();"

# A row that reports each second is updated often and read by its key.
STORAGE = """
ALTER TABLE tasks_progress SET (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);
"""
PLAIN = """
ALTER TABLE tasks_progress RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold);
"""


class Migration(migrations.Migration):
    dependencies = [("tasks", "0006_many_at_once")]

    operations = [
        migrations.CreateModel(
            name="AttemptLog",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("task_id", models.BigIntegerField()),
                ("number", models.SmallIntegerField()),
                ("at", models.DateTimeField()),
                ("level", models.TextField()),
                ("message", models.TextField()),
            ],
            options={
                "db_table": "tasks_attemptlog",
                "abstract": False,
                "default_permissions": ("view",),
                "indexes": [models.Index(fields=["task_id", "number", "id"], name="tasks_attemptlog_of_attempt")],
            },
        ),
        migrations.CreateModel(
            name="Progress",
            fields=[
                ("task_id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("attempt", models.SmallIntegerField()),
                ("fraction", models.FloatField(blank=True, null=True)),
                ("message", models.TextField(blank=True, db_default="")),
                ("state", models.JSONField(blank=True, null=True)),
                ("first_fraction", models.FloatField(blank=True, null=True)),
                ("first_at", models.DateTimeField(blank=True, null=True)),
                ("updated_at", models.DateTimeField(db_default=tasks.support.durations.StatementTimestamp())),
            ],
            options={
                "verbose_name_plural": "progress",
                "abstract": False,
                "default_permissions": ("view",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("fraction__isnull", True),
                            models.Q(("fraction__gte", 0), ("fraction__lte", 1)),
                            _connector="OR",
                        ),
                        name="tasks_progress_fraction_in_range",
                    )
                ],
            },
        ),
        migrations.RunSQL(FOLLOW, STAY),
        migrations.RunSQL(STORAGE, PLAIN),
    ]
