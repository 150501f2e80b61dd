"""Let no version of a task come to the end of its type: there the next claim's `version + 1` was an error for all.

The trigger goes on with 1 after 2,000,000,000; the constraint refuses what raw SQL sets above that.
"""

from django.contrib.postgres.operations import AddConstraintNotValid, ValidateConstraint
from django.db import migrations, models

from tasks.locking.version_trigger import CREATE_FUNCTION, CREATE_TRIGGER

NOT_BEGINNING_ANEW = """
CREATE OR REPLACE TRIGGER rowlock_version BEFORE UPDATE ON tasks_task
FOR EACH ROW WHEN (NEW.version <= OLD.version) EXECUTE FUNCTION rowlock_raise_version()
"""
# The trigger makes 1 of it.
LOWER_WHAT_IS_ABOVE = "UPDATE tasks_task SET version = 1 WHERE version > 2000000000"


class Migration(migrations.Migration):
    # Each in a transaction of its own: one that has the lock for a trigger and then asks for the whole table meets
    # claims that have read it and want to write, and each would wait for the other. One that was broken off may be run
    # again.
    atomic = False
    dependencies = [("tasks", "0016_count_keyed_from_index")]

    operations = [
        migrations.RunSQL(CREATE_FUNCTION, migrations.RunSQL.noop),
        migrations.RunSQL(CREATE_TRIGGER.format(table="tasks_task"), NOT_BEGINNING_ANEW),
        migrations.RunSQL(LOWER_WHAT_IS_ABOVE, migrations.RunSQL.noop),
        migrations.RunSQL(
            "ALTER TABLE tasks_task DROP CONSTRAINT IF EXISTS tasks_task_version_leaves_room", migrations.RunSQL.noop
        ),
        AddConstraintNotValid(
            model_name="task",
            constraint=models.CheckConstraint(
                condition=models.Q(version__lte=2_000_000_000), name="tasks_task_version_leaves_room"
            ),
        ),
        ValidateConstraint(model_name="task", name="tasks_task_version_leaves_room"),
    ]
