"""Programs that may only enqueue cannot start a run of the lab: only its page may."""

from django.db import migrations

REFUSE_LAB = """
CREATE TRIGGER rowlock_refuse_internal_lab BEFORE INSERT ON tasks_task
    FOR EACH ROW WHEN (NEW.task_path = 'dashboard.tasks.run_lab') EXECUTE FUNCTION rowlock_refuse_internal();
"""
NO_REFUSAL = "DROP TRIGGER rowlock_refuse_internal_lab ON tasks_task;"


class Migration(migrations.Migration):
    dependencies = [("dashboard", "0001_tables"), ("tasks", "0003_guards")]

    operations = [migrations.RunSQL(REFUSE_LAB, NO_REFUSAL)]
