"""Not everybody who may INSERT may enqueue what pages ask for."""

from django.db import migrations

# A caller of rowlock_enqueue() may lack every right to the table, as that function may run with those of its owner.
REFUSE_INTERNAL = """
CREATE FUNCTION rowlock_refuse_internal() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    caller CONSTANT text := coalesce(nullif(current_setting('role'), 'none'), session_user::text);
BEGIN
    IF NOT has_table_privilege(caller, TG_RELID, 'UPDATE') THEN
        RAISE EXCEPTION 'role % may not enqueue %', caller, NEW.task_path
            USING ERRCODE = 'insufficient_privilege', HINT = 'Pages enqueue it, each under a right of its own.';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER rowlock_refuse_internal BEFORE INSERT ON tasks_task
    FOR EACH ROW WHEN (starts_with(NEW.task_path, 'tasks.tasks.')) EXECUTE FUNCTION rowlock_refuse_internal();
"""
NO_REFUSAL = "DROP TRIGGER rowlock_refuse_internal ON tasks_task; DROP FUNCTION rowlock_refuse_internal();"


class Migration(migrations.Migration):
    dependencies = [("tasks", "0021_who_wrote_it")]

    operations = [migrations.RunSQL(REFUSE_INTERNAL, NO_REFUSAL)]
