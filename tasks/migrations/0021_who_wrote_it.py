"""The audit keeps the database role that wrote a line.

`session_user` cannot be chosen by a session: a line in somebody else's name shows by whom it was written. A role that
makes no bulk runs writes no lines of pages either, but for the bulk run that it carries out.
"""

from django.db import migrations, models

# Names are qualified, as a temporary table could stand before ours.
STAMP = """
CREATE FUNCTION rowlock_stamp_role() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    runs CONSTANT text := format('%I.tasks_bulkrun', TG_TABLE_SCHEMA);
    is_running boolean;
BEGIN
    NEW.role := session_user;
    IF NEW.source <> 'command' AND NOT has_table_privilege(current_user, runs, 'INSERT') THEN
        EXECUTE format('SELECT EXISTS (SELECT FROM %s WHERE actor = $1 AND started_at IS NOT NULL '
            'AND finished_at IS NULL)', runs) INTO is_running USING NEW.actor;
        IF NOT is_running THEN
            RAISE EXCEPTION 'role % writes no lines of pages to the audit', session_user
                USING ERRCODE = 'insufficient_privilege',
                HINT = 'A worker writes them for a bulk run that it carries out; commands write source ''command''.';
        END IF;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER rowlock_stamp_role BEFORE INSERT ON tasks_intervention
    FOR EACH ROW EXECUTE FUNCTION rowlock_stamp_role();
"""
NO_STAMP = "DROP TRIGGER rowlock_stamp_role ON tasks_intervention; DROP FUNCTION rowlock_stamp_role();"


class Migration(migrations.Migration):
    dependencies = [("tasks", "0020_recovery_failures")]

    operations = [
        migrations.AddField("intervention", "role", models.TextField(blank=True, db_default="")),
        migrations.RunSQL(STAMP, NO_STAMP),
    ]
