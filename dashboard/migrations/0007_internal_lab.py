"""The lab's task is no task of programs that may only enqueue: its page enqueues it."""

from django.db import migrations

REFUSE_LAB = """
CREATE TRIGGER rowlock_refuse_internal_lab BEFORE INSERT ON tasks_task
    FOR EACH ROW WHEN (NEW.task_path = 'dashboard.tasks.run_lab') EXECUTE FUNCTION rowlock_refuse_internal();
"""
NO_REFUSAL = "DROP TRIGGER rowlock_refuse_internal_lab ON tasks_task;"


class Migration(migrations.Migration):
    dependencies = [("dashboard", "0006_demo_rows"), ("tasks", "0022_refuse_internal")]

    operations = [migrations.RunSQL(REFUSE_LAB, NO_REFUSAL)]
