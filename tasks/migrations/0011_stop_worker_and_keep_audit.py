"""The right to stop a worker; and the audit cannot be emptied as a whole either."""

from django.db import migrations

# The function of 0002 names the operation in its refusal. A project's own test database is emptied by TRUNCATE between
# tests that commit: there, `ALTER TABLE tasks_intervention DISABLE TRIGGER rowlock_never_emptied` once after migrating.
NEVER_EMPTIED = """
CREATE TRIGGER rowlock_never_emptied BEFORE TRUNCATE ON tasks_intervention
    FOR EACH STATEMENT EXECUTE FUNCTION rowlock_refuse_change();
"""
MAY_BE_EMPTIED = "DROP TRIGGER rowlock_never_emptied ON tasks_intervention;"


class Migration(migrations.Migration):
    dependencies = [("tasks", "0010_throughput_total")]

    operations = [
        migrations.AlterModelOptions(
            name="worker",
            options={"default_permissions": ("view",), "permissions": [("stop_worker", "Can ask workers to stop")]},
        ),
        migrations.RunSQL(NEVER_EMPTIED, MAY_BE_EMPTIED),
    ]
