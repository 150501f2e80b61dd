"""Names of earlier versions that hold control characters or are too long: mended, so that their tasks can still run.

A task whose row breaks a constraint could not be claimed any more. A queue's name gets a question mark for each control
character; a key, which must stay distinct from others, becomes its hash. Validating reads the table beside the workers.
"""

from django.db import migrations

MEND_TASKS = """
UPDATE tasks_task
SET task_path = left(regexp_replace(task_path, '[\\u0001-\\u001f\\u007f-\\u009f]', '?', 'g'), 500),
    queue_name = left(regexp_replace(queue_name, '[\\u0001-\\u001f\\u007f-\\u009f]', '?', 'g'), 255),
    ordering_key = CASE WHEN ordering_key ~ '[\\u0001-\\u001f\\u007f-\\u009f]' OR length(ordering_key) > 255
                        THEN md5(ordering_key) ELSE ordering_key END
WHERE length(task_path) > 500 OR length(queue_name) > 255 OR length(ordering_key) > 255
   OR (task_path || queue_name || coalesce(ordering_key, '')) ~ '[\\u0001-\\u001f\\u007f-\\u009f]';
"""
# What was paused stays paused under the mended name.
MEND_QUEUES = """
INSERT INTO tasks_queue (name, paused, paused_at, paused_by, recovery)
SELECT left(regexp_replace(name, '[\\u0001-\\u001f\\u007f-\\u009f]', '?', 'g'), 255), bool_or(paused), max(paused_at),
    max(paused_by), min(recovery)
FROM tasks_queue WHERE name ~ '[\\u0001-\\u001f\\u007f-\\u009f]' OR length(name) > 255 GROUP BY 1
ON CONFLICT (name) DO UPDATE SET paused = tasks_queue.paused OR excluded.paused;
DELETE FROM tasks_queue WHERE name ~ '[\\u0001-\\u001f\\u007f-\\u009f]' OR length(name) > 255;
"""
VALIDATE = """
ALTER TABLE tasks_task VALIDATE CONSTRAINT tasks_task_names_readable;
ALTER TABLE tasks_queue VALIDATE CONSTRAINT tasks_queue_name_readable;
"""


class Migration(migrations.Migration):
    dependencies = [("tasks", "0018_readable_names")]

    operations = [
        migrations.RunSQL(MEND_TASKS, migrations.RunSQL.noop),
        migrations.RunSQL(MEND_QUEUES, migrations.RunSQL.noop),
        migrations.RunSQL(VALIDATE, migrations.RunSQL.noop),
    ]
