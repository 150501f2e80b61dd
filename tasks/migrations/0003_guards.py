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

# Raw deletes of tasks delete their attempts and reports too. The reports by one statement for all deleted rows, as a
# foreign key would look for each of them.
FOLLOW_THE_TASK = """
ALTER TABLE tasks_attempt ADD CONSTRAINT tasks_attempt_task_fk
    FOREIGN KEY (task_id) REFERENCES tasks_task (id) ON DELETE CASCADE;

CREATE FUNCTION rowlock_forget_reports() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM tasks_progress USING gone WHERE tasks_progress.task_id = gone.id;
    DELETE FROM tasks_attemptlog USING gone WHERE tasks_attemptlog.task_id = gone.id;
    RETURN NULL;
END $$;
CREATE TRIGGER rowlock_forget_reports AFTER DELETE ON tasks_task
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION rowlock_forget_reports();
"""
STAY = """
DROP TRIGGER rowlock_forget_reports ON tasks_task;
DROP FUNCTION rowlock_forget_reports();
ALTER TABLE tasks_attempt DROP CONSTRAINT tasks_attempt_task_fk;
"""

# A key that is unique while queued was free while its task ran, so another READY task may have it now. To take it again
# could fail, or wait for an enqueuer's open transaction, and one row would stop the recovery or completion of all
# others. So the task comes back without its claim on the key, and is not lost.
GIVE_UP = """
CREATE FUNCTION rowlock_give_up_key() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.unique_while := 'b';
    RETURN NEW;
END $$;
CREATE TRIGGER rowlock_give_up_key BEFORE UPDATE ON tasks_task
    FOR EACH ROW WHEN (NEW.unique_while = 'q' AND NEW.status = 'READY' AND OLD.status = 'PROCESSING')
    EXECUTE FUNCTION rowlock_give_up_key();
"""
KEEP_KEY = "DROP TRIGGER rowlock_give_up_key ON tasks_task; DROP FUNCTION rowlock_give_up_key();"

# A row leaves its slots with its status, whoever ends it. And nobody begins one above the limit, raw SQL included; a
# claim that meets a limit lowered since it looked tries again. Claims and completions call the first two for rows with
# slots alone, and the second one only above slot 1. One check says the rest, because every statement prepares each
# check anew: six checks cost a claim 0.1 ms.
GUARD_LIMITS = """
CREATE FUNCTION rowlock_leave_slots() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.slot := NULL;
    NEW.queue_slot := NULL;
    RETURN NEW;
END $$;
CREATE TRIGGER rowlock_leave_slots BEFORE UPDATE ON tasks_task FOR EACH ROW
    WHEN (NEW.status <> 'PROCESSING' AND (OLD.slot IS NOT NULL OR OLD.queue_slot IS NOT NULL))
    EXECUTE FUNCTION rowlock_leave_slots();
ALTER TABLE tasks_task ADD CONSTRAINT tasks_task_slot_while_it_runs CHECK (
    (status = 'PROCESSING' AND concurrency_key IS NOT NULL) = (slot IS NOT NULL));

CREATE FUNCTION rowlock_guard_slots() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.slot NOT BETWEEN 1 AND coalesce((SELECT max_running FROM tasks_limit WHERE key = NEW.concurrency_key),
            NEW.concurrency_limit, CASE WHEN NEW.rate_key IS NULL THEN 1 ELSE 32767 END)
       OR NEW.queue_slot NOT BETWEEN 1 AND (SELECT max_running FROM tasks_queue WHERE name = NEW.queue_name) THEN
        RAISE EXCEPTION 'task % would exceed a limit: slot % of key %, slot % of queue %', NEW.id,
                coalesce(NEW.slot::text, '-'), coalesce(quote_literal(NEW.concurrency_key), '-'),
                coalesce(NEW.queue_slot::text, '-'), quote_literal(NEW.queue_name)
            USING ERRCODE = 'check_violation', CONSTRAINT = 'tasks_task_slot_within_limit';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER rowlock_slots_within_limit BEFORE INSERT ON tasks_task FOR EACH ROW
    WHEN (NEW.slot <> 1 OR NEW.queue_slot <> 1) EXECUTE FUNCTION rowlock_guard_slots();
CREATE TRIGGER rowlock_slot_within_limit BEFORE UPDATE OF slot, queue_slot ON tasks_task FOR EACH ROW
    WHEN (NEW.slot <> 1 AND NEW.slot IS DISTINCT FROM OLD.slot
        OR NEW.queue_slot <> 1 AND NEW.queue_slot IS DISTINCT FROM OLD.queue_slot)
    EXECUTE FUNCTION rowlock_guard_slots();

CREATE FUNCTION rowlock_guard_keys() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    problem CONSTANT text := CASE
        WHEN NEW.ordering_key IS NOT NULL AND NEW.concurrency_key IS NOT NULL
        THEN 'ordering_key and concurrency_key exclude each other: one key is an order, or a limit'
        WHEN NEW.rate_key IS NOT NULL AND NEW.concurrency_key IS NULL
        THEN 'rate_key needs a concurrency_key, the line in which the task waits: pass the same text'
        WHEN NEW.rate_key IS NULL AND NEW.rate IS NOT NULL OR num_nulls(NEW.rate, NEW.period_seconds) = 1
            OR NEW.rate NOT BETWEEN 1 AND 1000000 OR NEW.period_seconds < 1
        THEN 'rate (1 to 1000000), period_seconds (1 or more) and rate_key belong together'
        WHEN length(NEW.rate_key) NOT BETWEEN 1 AND 255
            OR NEW.rate_key COLLATE "C" ~ '[\\u0001-\\u001f\\u007f-\\u009f]'
        THEN 'rate_key must have 1 to 255 characters, without control characters' END;
BEGIN
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION 'task %: %', NEW.id, problem
            USING ERRCODE = 'check_violation', CONSTRAINT = 'tasks_task_limits_sound';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER rowlock_guard_new_keys BEFORE INSERT ON tasks_task FOR EACH ROW
    WHEN (num_nonnulls(NEW.concurrency_key, NEW.rate_key, NEW.rate, NEW.period_seconds) > 0)
    EXECUTE FUNCTION rowlock_guard_keys();
CREATE TRIGGER rowlock_guard_keys
    BEFORE UPDATE OF ordering_key, concurrency_key, rate_key, rate, period_seconds ON tasks_task FOR EACH ROW
    EXECUTE FUNCTION rowlock_guard_keys();
"""
NO_LIMITS = """
DROP TRIGGER rowlock_guard_keys ON tasks_task;
DROP TRIGGER rowlock_guard_new_keys ON tasks_task;
DROP FUNCTION rowlock_guard_keys();
DROP TRIGGER rowlock_slot_within_limit ON tasks_task;
DROP TRIGGER rowlock_slots_within_limit ON tasks_task;
DROP FUNCTION rowlock_guard_slots();
ALTER TABLE tasks_task DROP CONSTRAINT tasks_task_slot_while_it_runs;
DROP TRIGGER rowlock_leave_slots ON tasks_task;
DROP FUNCTION rowlock_leave_slots();
"""

# Whoever changes the times of a schedule, raw SQL included: its next time is that of the old ones no more, so that a
# scheduler computes it anew. `edition` counts changes of settings, and a schedule that is not paused has no reason.
KEEP_SCHEDULE = """
CREATE FUNCTION rowlock_keep_schedule() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF (NEW.cron, NEW.every_seconds, NEW.timezone) IS DISTINCT FROM (OLD.cron, OLD.every_seconds, OLD.timezone)
            AND (NEW.next_at, NEW.ended_at) IS NOT DISTINCT FROM (OLD.next_at, OLD.ended_at) THEN
            NEW.next_at := NULL;
            NEW.ended_at := NULL;
        END IF;
        IF NEW.ends_at IS DISTINCT FROM OLD.ends_at THEN
            NEW.next_at := CASE WHEN NEW.next_at > NEW.ends_at THEN NULL ELSE NEW.next_at END;
            NEW.ended_at := nullif(NEW.ended_at, OLD.ended_at);
        END IF;
        NEW.edition := OLD.edition + CASE WHEN
            (NEW.task_path, NEW.args, NEW.kwargs, NEW.queue_name, NEW.priority, NEW.cron, NEW.every_seconds,
                NEW.timezone, NEW.missed, NEW.overlap, NEW.ends_at, NEW.paused, NEW.problem, NEW.declared)
            IS DISTINCT FROM
            (OLD.task_path, OLD.args, OLD.kwargs, OLD.queue_name, OLD.priority, OLD.cron, OLD.every_seconds,
                OLD.timezone, OLD.missed, OLD.overlap, OLD.ends_at, OLD.paused, OLD.problem, OLD.declared)
            THEN 1 ELSE 0 END;
    END IF;
    IF NEW.next_at IS NOT NULL THEN
        NEW.ended_at := NULL;
    END IF;
    IF NEW.paused THEN
        NEW.paused_at := coalesce(NEW.paused_at, statement_timestamp());
    ELSE
        NEW.paused_at := NULL;
        NEW.paused_by := '';
        NEW.problem := '';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER rowlock_keep_schedule BEFORE INSERT OR UPDATE ON tasks_schedule
    FOR EACH ROW EXECUTE FUNCTION rowlock_keep_schedule();
"""
LET_SCHEDULE_GO = "DROP TRIGGER rowlock_keep_schedule ON tasks_schedule; DROP FUNCTION rowlock_keep_schedule();"

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

# Every statement that writes a row reads the text of all CHECKs anew, so this one is short. Three with these rules made
# rowlock_enqueue() of a task without keys a third slower. A NULL passes, so such a task matches no pattern. The lengths
# stand apart: each match of a pattern with {1,255} makes a state for each character.
VALID_KEYS = """
ALTER TABLE tasks_task ADD CONSTRAINT tasks_task_keys_valid CHECK (
    (unique_key IS NULL) = (unique_while IS NULL)
    AND greatest(length(unique_key), length(concurrency_key)) < 256
    AND unique_while || unique_key COLLATE "C" ~ '^[qab][^\\u0001-\\u001f\\u007f-\\u009f]+$'
    AND concurrency_key COLLATE "C" ~ '^[^\\u0001-\\u001f\\u007f-\\u009f]+$'
    AND concurrency_limit BETWEEN 1 AND 10000 * num_nonnulls(concurrency_key));
"""
ANY_KEYS = "ALTER TABLE tasks_task DROP CONSTRAINT tasks_task_keys_valid;"

# The limits of tasks/support/reading.py for raw SQL: lengths, no control characters in what reports show, and times that
# Python can read back. Every claim and completion evaluates the check of tasks_task. So it counts bytes before
# characters, and one pattern reads all three names, by code points: 0.4 microseconds a write.
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
ALTER TABLE tasks_limit ADD CONSTRAINT tasks_limit_key_readable CHECK (
    length(key) BETWEEN 1 AND 255 AND key COLLATE "C" !~ '[\\u0001-\\u001f\\u007f-\\u009f]');
ALTER TABLE tasks_schedule ADD CONSTRAINT tasks_schedule_names_readable CHECK (
    length(name) BETWEEN 1 AND 200 AND length(task_path) BETWEEN 1 AND 500 AND length(timezone) BETWEEN 1 AND 100
    AND length(queue_name) BETWEEN 1 AND 255 AND length(cron) BETWEEN 1 AND 200 AND length(paused_by) <= 255
    AND length(problem) <= 1000
    AND concat(name, task_path, timezone, queue_name, cron, paused_by, problem) !~ '[\\u0001-\\u001f\\u007f-\\u009f]');
ALTER TABLE tasks_schedule ADD CONSTRAINT tasks_schedule_argument_shapes CHECK (
    jsonb_typeof(args) = 'array' AND jsonb_typeof(kwargs) = 'object'
    AND coalesce(jsonb_typeof(declared), 'object') = 'object');
ALTER TABLE tasks_schedule ADD CONSTRAINT tasks_schedule_times_readable CHECK (
    coalesce(next_at, created_at) BETWEEN '0001-01-02' AND '9999-12-30'
    AND coalesce(ends_at, created_at) BETWEEN '0001-01-02' AND '9999-12-30');
ALTER TABLE tasks_tick ADD CONSTRAINT tasks_tick_name_readable CHECK (
    length(schedule_name) BETWEEN 1 AND 200 AND schedule_name !~ '[\\u0001-\\u001f\\u007f-\\u009f]');
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
ALTER TABLE tasks_limit DROP CONSTRAINT tasks_limit_key_readable;
ALTER TABLE tasks_schedule DROP CONSTRAINT tasks_schedule_names_readable;
ALTER TABLE tasks_schedule DROP CONSTRAINT tasks_schedule_argument_shapes;
ALTER TABLE tasks_schedule DROP CONSTRAINT tasks_schedule_times_readable;
ALTER TABLE tasks_tick DROP CONSTRAINT tasks_tick_name_readable;
ALTER TABLE tasks_task DROP CONSTRAINT tasks_task_names_readable;
"""

# Every task leaves two or three dead rows behind. Unvacuumed, one-row claims fall to 0.4 of their speed after
# 600,000 tasks; at the defaults a table of ten million rows would wait for two million of them. By default VACUUM skips
# the indexes while dead rows are on less than 2 % of a table's pages. Beside ten million finished tasks the claim's
# index then kept all dead entries, and a claim of one task read 124 pages for each step instead of four.
#
# A tenth of each page is left to later versions of its rows, so a claim changes one page and not two. After a checkpoint
# the first change of a page writes all of it to the log. Where new tasks had filled gaps between three million finished
# ones, a claim wrote 8.8 kB, and now 0.7. Between a million that had been claimed and completed one after the other, the
# whole life of a task wrote 2.8 kB, and now 2.1.
#
# Attempts: the page counts failures from the index alone as far as VACUUM has been. At the default it would come only
# after the table has grown by a fifth: beside 200,000 attempts not vacuumed, a page of a million read each of them at
# random. Reports, buckets and schedules: few rows that are updated often, in place, and found by an index.
STORAGE = """
ALTER TABLE tasks_task SET (
    fillfactor = 90, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 1000,
    autovacuum_vacuum_cost_delay = 1, autovacuum_vacuum_cost_limit = 2000, vacuum_index_cleanup = on);
ALTER TABLE tasks_attempt SET (
    autovacuum_vacuum_insert_scale_factor = 0.01, autovacuum_vacuum_insert_threshold = 1000);
ALTER TABLE tasks_progress SET (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);
ALTER TABLE tasks_throughput SET (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
ALTER TABLE tasks_bucket SET (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
ALTER TABLE tasks_worker SET (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
ALTER TABLE tasks_schedule SET (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
"""
PLAIN_STORAGE = """
ALTER TABLE tasks_task RESET (
    fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold, autovacuum_analyze_scale_factor,
    autovacuum_analyze_threshold, autovacuum_vacuum_cost_delay, autovacuum_vacuum_cost_limit, vacuum_index_cleanup);
ALTER TABLE tasks_attempt RESET (autovacuum_vacuum_insert_scale_factor, autovacuum_vacuum_insert_threshold);
ALTER TABLE tasks_progress RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold);
ALTER TABLE tasks_throughput RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold);
ALTER TABLE tasks_bucket RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold);
ALTER TABLE tasks_worker RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold);
ALTER TABLE tasks_schedule RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold);
"""


class Migration(migrations.Migration):
    dependencies = [("tasks", "0002_operations")]

    operations = [
        VersionTrigger("tasks.Task"),
        VersionTrigger("tasks.Schedule"),
        migrations.RunSQL(ANNOUNCE, FORGET_ANNOUNCE),
        migrations.RunSQL(APPEND_ONLY, NOT_APPEND_ONLY),
        migrations.RunSQL(STAMP_ROLE, NO_STAMP),
        migrations.RunSQL(REFUSE_INTERNAL, NO_REFUSAL),
        migrations.RunSQL(FOLLOW_THE_TASK, STAY),
        migrations.RunSQL(GIVE_UP, KEEP_KEY),
        migrations.RunSQL(GUARD_LIMITS, NO_LIMITS),
        migrations.RunSQL(KEEP_SCHEDULE, LET_SCHEDULE_GO),
        migrations.RunSQL(READABLE_TASKS, ANY_TASK),
        migrations.RunSQL(VALID_KEYS, ANY_KEYS),
        migrations.RunSQL(READABLE_NAMES, ANY_NAME),
        migrations.RunSQL(STORAGE, PLAIN_STORAGE),
    ]
