"""Rules that the ORM cannot express: triggers, checks of what raw SQL writes, and storage settings."""

from django.db import migrations

from tasks.locking import VersionTrigger

# A notification at commit makes all committers queue behind each other, so it is sent only when a worker may be idle.
# One idle worker is on duty and holds this advisory lock exclusively. Enqueuers take it shared until they commit;
# if they cannot get it, a worker waits for the notification. See tasks/queue/wakeup.py.
ANNOUNCE = """
CREATE FUNCTION rowlock_announce_tasks() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT pg_try_advisory_xact_lock_shared(hashtext('rowlock:duty'), hashtext(TG_TABLE_SCHEMA)) THEN
        PERFORM pg_notify('rowlock_' || TG_TABLE_SCHEMA, '');
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER rowlock_announce AFTER INSERT ON tasks_task
    FOR EACH STATEMENT EXECUTE FUNCTION rowlock_announce_tasks();
"""
FORGET_ANNOUNCE = "DROP TRIGGER rowlock_announce ON tasks_task; DROP FUNCTION rowlock_announce_tasks();"

# A project's own test database is emptied by TRUNCATE between tests that commit. There, run once after migrating:
# `ALTER TABLE tasks_intervention DISABLE TRIGGER rowlock_never_emptied`.
APPEND_ONLY = """
CREATE FUNCTION rowlock_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit trail is append-only: % of table % refused', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'insufficient_privilege';
END $$;
CREATE TRIGGER rowlock_append_only BEFORE UPDATE OR DELETE ON tasks_intervention
    FOR EACH ROW EXECUTE FUNCTION rowlock_refuse_change();
CREATE TRIGGER rowlock_never_emptied BEFORE TRUNCATE ON tasks_intervention
    FOR EACH STATEMENT EXECUTE FUNCTION rowlock_refuse_change();
"""
NOT_APPEND_ONLY = """
DROP TRIGGER rowlock_never_emptied ON tasks_intervention;
DROP TRIGGER rowlock_append_only ON tasks_intervention;
DROP FUNCTION rowlock_refuse_change();
"""

# A session cannot choose its `session_user`, so a line in somebody else's name shows who wrote it. A role that may not
# create bulk runs may write a page's line only for a bulk run that it carries out. Names are qualified, as a temporary
# table could hide ours.
STAMP_ROLE = """
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

# Not everybody who may INSERT may enqueue the tasks behind pages. A caller of rowlock_enqueue() may have no right to
# the table at all, as that function may run with its owner's rights.
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

# Raw deletes of tasks delete their attempts too.
ATTEMPTS_FOLLOW_THEIR_TASK = """
ALTER TABLE tasks_attempt ADD CONSTRAINT tasks_attempt_task_fk
    FOREIGN KEY (task_id) REFERENCES tasks_task (id) ON DELETE CASCADE;
"""
ATTEMPTS_STAY = "ALTER TABLE tasks_attempt DROP CONSTRAINT tasks_attempt_task_fk;"

# Programs in other languages insert too. A time that Python cannot read ('-infinity', a year beyond datetime's range)
# would stop every claim that includes its row.
READABLE_TASKS = """
ALTER TABLE tasks_task ADD CONSTRAINT tasks_task_argument_shapes
    CHECK (jsonb_typeof(args) = 'array' AND jsonb_typeof(kwargs) = 'object');
ALTER TABLE tasks_task ADD CONSTRAINT tasks_task_run_after_readable
    CHECK (run_after > '0001-01-02' AND run_after < '9999-12-30');
"""
ANY_TASK = """
ALTER TABLE tasks_task DROP CONSTRAINT tasks_task_run_after_readable;
ALTER TABLE tasks_task DROP CONSTRAINT tasks_task_argument_shapes;
"""

# The limits of tasks/support/reading.py for raw SQL: lengths, and no control characters in what reports show. Every
# claim and completion evaluates the check of tasks_task. So it counts bytes before characters, and one pattern reads all
# three names, by code points: 0.4 microseconds a write.
READABLE_NAMES = """
ALTER TABLE tasks_intervention ADD CONSTRAINT tasks_intervention_readable CHECK (
    length(actor) <= 255 AND length(action) <= 1000 AND length(target) <= 500 AND length(reason) <= 1000
    AND (actor || source || action || target || reason) !~ '[\\u0001-\\u001f\\u007f-\\u009f]');
ALTER TABLE tasks_commandrun ADD CONSTRAINT tasks_commandrun_name_readable CHECK (
    length(name) BETWEEN 1 AND 255 AND name !~ '[\\u0001-\\u001f\\u007f-\\u009f]');
ALTER TABLE tasks_expectedcommand ADD CONSTRAINT tasks_expectedcommand_name_readable CHECK (
    length(name) BETWEEN 1 AND 255 AND name !~ '[\\u0001-\\u001f\\u007f-\\u009f]');
ALTER TABLE tasks_lock ADD CONSTRAINT tasks_lock_names_readable CHECK (
    length(name) BETWEEN 1 AND 255 AND length(owner) BETWEEN 1 AND 255
    AND concat(name, owner) !~ '[\\u0001-\\u001f\\u007f-\\u009f]');
ALTER TABLE tasks_lockwaiter ADD CONSTRAINT tasks_lockwaiter_names_readable CHECK (
    length(name) BETWEEN 1 AND 255 AND length(owner) BETWEEN 1 AND 255
    AND (name || owner) !~ '[\\u0001-\\u001f\\u007f-\\u009f]');
ALTER TABLE tasks_worker ADD CONSTRAINT tasks_worker_id_readable CHECK (
    length(id) BETWEEN 1 AND 255 AND id !~ '[\\u0001-\\u001f\\u007f-\\u009f]');
ALTER TABLE tasks_queue ADD CONSTRAINT tasks_queue_name_readable CHECK (
    length(name) BETWEEN 1 AND 255 AND name !~ '[\\u0001-\\u001f\\u007f-\\u009f]');
ALTER TABLE tasks_task ADD CONSTRAINT tasks_task_names_readable CHECK (
    (octet_length(task_path) <= 500 OR length(task_path) <= 500)
    AND (octet_length(queue_name) <= 255 OR length(queue_name) <= 255)
    AND (ordering_key IS NULL OR octet_length(ordering_key) <= 255 OR length(ordering_key) <= 255)
    AND (task_path || queue_name || coalesce(ordering_key, '')) COLLATE "C"
        !~ '[\\u0001-\\u001f\\u007f-\\u009f]');
"""
ANY_NAME = """
ALTER TABLE tasks_intervention DROP CONSTRAINT tasks_intervention_readable;
ALTER TABLE tasks_commandrun DROP CONSTRAINT tasks_commandrun_name_readable;
ALTER TABLE tasks_expectedcommand DROP CONSTRAINT tasks_expectedcommand_name_readable;
ALTER TABLE tasks_lock DROP CONSTRAINT tasks_lock_names_readable;
ALTER TABLE tasks_lockwaiter DROP CONSTRAINT tasks_lockwaiter_names_readable;
ALTER TABLE tasks_worker DROP CONSTRAINT tasks_worker_id_readable;
ALTER TABLE tasks_queue DROP CONSTRAINT tasks_queue_name_readable;
ALTER TABLE tasks_task DROP CONSTRAINT tasks_task_names_readable;
"""

# Every task leaves two or three dead rows behind. Unvacuumed, one-row claims fall to 0.4 of their speed after
# 600,000 tasks; at the defaults a table of ten million rows would wait for two million of them. By default VACUUM skips
# the indexes while dead rows are on less than 2 % of a table's pages. Beside ten million finished tasks the claim's
# index then kept all dead entries, and a claim of one task read 124 pages for each step instead of four.
QUEUE_TABLE = """
ALTER TABLE tasks_task SET (
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 1000,
    autovacuum_vacuum_cost_delay = 1, autovacuum_vacuum_cost_limit = 2000, vacuum_index_cleanup = on);
ALTER TABLE tasks_throughput SET (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
ALTER TABLE tasks_worker SET (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
"""
PLAIN_TABLE = """
ALTER TABLE tasks_task RESET (
    autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold, autovacuum_analyze_scale_factor,
    autovacuum_analyze_threshold, autovacuum_vacuum_cost_delay, autovacuum_vacuum_cost_limit, vacuum_index_cleanup);
ALTER TABLE tasks_throughput RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold);
ALTER TABLE tasks_worker RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold);
"""


class Migration(migrations.Migration):
    dependencies = [("tasks", "0002_operations")]

    operations = [
        VersionTrigger("tasks.Task"),
        migrations.RunSQL(ANNOUNCE, FORGET_ANNOUNCE),
        migrations.RunSQL(APPEND_ONLY, NOT_APPEND_ONLY),
        migrations.RunSQL(STAMP_ROLE, NO_STAMP),
        migrations.RunSQL(REFUSE_INTERNAL, NO_REFUSAL),
        migrations.RunSQL(ATTEMPTS_FOLLOW_THEIR_TASK, ATTEMPTS_STAY),
        migrations.RunSQL(READABLE_TASKS, ANY_TASK),
        migrations.RunSQL(READABLE_NAMES, ANY_NAME),
        migrations.RunSQL(QUEUE_TABLE, PLAIN_TABLE),
    ]
