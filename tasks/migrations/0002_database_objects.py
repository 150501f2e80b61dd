"""What the ORM cannot say: the version trigger, the announcement of new tasks, append-only audit, table settings."""

from django.db import migrations

from tasks.locking import VersionTrigger

# A notification at commit makes all committers queue behind each other, so it is sent only when a worker may be idle.
# One idle worker is on duty: it holds this advisory lock exclusively. Enqueuers take it shared and let go at commit;
# not getting it means that somebody waits for the notification. See tasks/queue/wakeup.py.
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

APPEND_ONLY = """
CREATE FUNCTION rowlock_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit trail is append-only: % of table % refused', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'insufficient_privilege';
END $$;
CREATE TRIGGER rowlock_append_only BEFORE UPDATE OR DELETE ON tasks_intervention
    FOR EACH ROW EXECUTE FUNCTION rowlock_refuse_change();
"""
NOT_APPEND_ONLY = "DROP TRIGGER rowlock_append_only ON tasks_intervention; DROP FUNCTION rowlock_refuse_change();"

ATTEMPTS_FOLLOW_THEIR_TASK = """
ALTER TABLE tasks_attempt ADD CONSTRAINT tasks_attempt_task_fk
    FOREIGN KEY (task_id) REFERENCES tasks_task (id) ON DELETE CASCADE;
"""
ATTEMPTS_STAY = "ALTER TABLE tasks_attempt DROP CONSTRAINT tasks_attempt_task_fk;"

# Programs in other languages insert too: positional arguments are an array, keyword arguments an object.
ARGUMENT_SHAPES = """
ALTER TABLE tasks_task ADD CONSTRAINT tasks_task_argument_shapes
    CHECK (jsonb_typeof(args) = 'array' AND jsonb_typeof(kwargs) = 'object');
"""
ANY_SHAPE = "ALTER TABLE tasks_task DROP CONSTRAINT tasks_task_argument_shapes;"

# Every task leaves two or three dead rows behind. Unvacuumed, one-row claims fall to 0.4 of their speed after
# 600,000 tasks; at the defaults a table of ten million rows would wait for two million of them.
QUEUE_TABLE = """
ALTER TABLE tasks_task SET (
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 1000,
    autovacuum_vacuum_cost_delay = 1, autovacuum_vacuum_cost_limit = 2000);
ALTER TABLE tasks_throughput SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
ALTER TABLE tasks_worker SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
"""
PLAIN_TABLE = """
ALTER TABLE tasks_task RESET (
    autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold, autovacuum_analyze_scale_factor,
    autovacuum_analyze_threshold, autovacuum_vacuum_cost_delay, autovacuum_vacuum_cost_limit);
ALTER TABLE tasks_throughput RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold);
ALTER TABLE tasks_worker RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold);
"""


class Migration(migrations.Migration):
    dependencies = [("tasks", "0001_initial")]

    operations = [
        VersionTrigger("tasks.Task"),
        migrations.RunSQL(ANNOUNCE, FORGET_ANNOUNCE),
        migrations.RunSQL(APPEND_ONLY, NOT_APPEND_ONLY),
        migrations.RunSQL(ATTEMPTS_FOLLOW_THEIR_TASK, ATTEMPTS_STAY),
        migrations.RunSQL(ARGUMENT_SHAPES, ANY_SHAPE),
        migrations.RunSQL(QUEUE_TABLE, PLAIN_TABLE),
    ]
