"""Add the fingerprint that groups unsuccessful attempts, and an index of the audit without enqueues."""

from django.db import migrations, models

# Attempts of an earlier version have no place in the code, so they are grouped by exception alone.
FINGERPRINTS = """
UPDATE tasks_attempt AS attempt SET
    queue_name = task.queue_name,
    fingerprint = left(encode(sha256(convert_to(
        concat_ws('|', task.task_path, attempt.exception_class, attempt.outcome), 'UTF8')), 'hex'), 12)
        || ' ' || attempt.outcome
FROM tasks_task AS task WHERE task.id = attempt.task_id AND attempt.outcome <> 'released'
"""

# The page counts failures from the index alone as far as VACUUM has been. At the default it would come only after the
# table has grown by a fifth: beside 200,000 attempts not vacuumed, a page of a million read each of them at random.
VACUUM_OFTEN = """
ALTER TABLE tasks_attempt SET (
    autovacuum_vacuum_insert_scale_factor = 0.01, autovacuum_vacuum_insert_threshold = 1000);
"""
VACUUM_SELDOM = """
ALTER TABLE tasks_attempt RESET (autovacuum_vacuum_insert_scale_factor, autovacuum_vacuum_insert_threshold);
"""


class Migration(migrations.Migration):
    dependencies = [("tasks", "0004_functions")]

    operations = [
        migrations.AddField("attempt", "queue_name", models.TextField(blank=True, db_default="")),
        migrations.AddField("attempt", "release", models.TextField(blank=True, db_default="")),
        migrations.AddField("attempt", "fingerprint", models.TextField(blank=True, db_collation="C", db_default="")),
        migrations.RunSQL(FINGERPRINTS, migrations.RunSQL.noop),
        migrations.RunSQL(VACUUM_OFTEN, VACUUM_SELDOM),
        migrations.AddIndex(
            "attempt",
            models.Index(
                fields=["fingerprint", "finished_at"],
                include=("queue_name", "release"),
                name="tasks_attempt_failures",
            ),
        ),
        migrations.AddIndex(
            "intervention",
            models.Index(
                condition=~models.Q(action__startswith="enqueue"), fields=["id"], name="tasks_intervention_changes"
            ),
        ),
    ]
