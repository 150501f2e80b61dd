"""The limits of tasks/support/reading.py for whoever writes SQL: lengths, and no control characters in what reports show.

The constraints are NOT VALID: adding them reads no row, and what is there already stays until it is next written. The
next migration mends the rows that workers will write. The audit is never rewritten, so its old lines stay as they are.
"""

from django.db import migrations

# The check of tasks_task is asked at every claim and completion, so bytes are counted before characters, and one
# pattern reads all three names, by code points: 0.4 microseconds a write.
ADD = """
ALTER TABLE tasks_intervention DROP CONSTRAINT IF EXISTS tasks_intervention_readable,
    ADD CONSTRAINT tasks_intervention_readable CHECK (
    length(actor) <= 255 AND length(action) <= 1000 AND length(target) <= 500 AND length(reason) <= 1000
    AND (actor || source || action || target || reason) !~ '[\\u0001-\\u001f\\u007f-\\u009f]') NOT VALID;
ALTER TABLE tasks_commandrun DROP CONSTRAINT IF EXISTS tasks_commandrun_name_readable,
    ADD CONSTRAINT tasks_commandrun_name_readable CHECK (
    length(name) BETWEEN 1 AND 255 AND name !~ '[\\u0001-\\u001f\\u007f-\\u009f]') NOT VALID;
ALTER TABLE tasks_expectedcommand DROP CONSTRAINT IF EXISTS tasks_expectedcommand_name_readable,
    ADD CONSTRAINT tasks_expectedcommand_name_readable CHECK (
    length(name) BETWEEN 1 AND 255 AND name !~ '[\\u0001-\\u001f\\u007f-\\u009f]') NOT VALID;
ALTER TABLE tasks_lock DROP CONSTRAINT IF EXISTS tasks_lock_names_readable,
    ADD CONSTRAINT tasks_lock_names_readable CHECK (
    length(name) BETWEEN 1 AND 255 AND length(owner) BETWEEN 1 AND 255
    AND concat(name, owner) !~ '[\\u0001-\\u001f\\u007f-\\u009f]') NOT VALID;
ALTER TABLE tasks_lockwaiter DROP CONSTRAINT IF EXISTS tasks_lockwaiter_names_readable,
    ADD CONSTRAINT tasks_lockwaiter_names_readable CHECK (
    length(name) BETWEEN 1 AND 255 AND length(owner) BETWEEN 1 AND 255
    AND (name || owner) !~ '[\\u0001-\\u001f\\u007f-\\u009f]') NOT VALID;
ALTER TABLE tasks_worker DROP CONSTRAINT IF EXISTS tasks_worker_id_readable,
    ADD CONSTRAINT tasks_worker_id_readable CHECK (
    length(id) BETWEEN 1 AND 255 AND id !~ '[\\u0001-\\u001f\\u007f-\\u009f]') NOT VALID;
ALTER TABLE tasks_queue DROP CONSTRAINT IF EXISTS tasks_queue_name_readable,
    ADD CONSTRAINT tasks_queue_name_readable CHECK (
    length(name) BETWEEN 1 AND 255 AND name !~ '[\\u0001-\\u001f\\u007f-\\u009f]') NOT VALID;
ALTER TABLE tasks_task DROP CONSTRAINT IF EXISTS tasks_task_names_readable,
    ADD CONSTRAINT tasks_task_names_readable CHECK (
    (octet_length(task_path) <= 500 OR length(task_path) <= 500)
    AND (octet_length(queue_name) <= 255 OR length(queue_name) <= 255)
    AND (ordering_key IS NULL OR octet_length(ordering_key) <= 255 OR length(ordering_key) <= 255)
    AND (task_path || queue_name || coalesce(ordering_key, '')) COLLATE "C"
        !~ '[\\u0001-\\u001f\\u007f-\\u009f]') NOT VALID;
"""
DROP = """
ALTER TABLE tasks_intervention DROP CONSTRAINT tasks_intervention_readable;
ALTER TABLE tasks_commandrun DROP CONSTRAINT tasks_commandrun_name_readable;
ALTER TABLE tasks_expectedcommand DROP CONSTRAINT tasks_expectedcommand_name_readable;
ALTER TABLE tasks_lock DROP CONSTRAINT tasks_lock_names_readable;
ALTER TABLE tasks_lockwaiter DROP CONSTRAINT tasks_lockwaiter_names_readable;
ALTER TABLE tasks_worker DROP CONSTRAINT tasks_worker_id_readable;
ALTER TABLE tasks_queue DROP CONSTRAINT tasks_queue_name_readable;
ALTER TABLE tasks_task DROP CONSTRAINT tasks_task_names_readable;
"""

# As in migration 0003, with the limits of names.
ENQUEUE = """
CREATE OR REPLACE FUNCTION rowlock_enqueue(
    task_path text,
    args jsonb DEFAULT '[]',
    kwargs jsonb DEFAULT '{}',
    queue text DEFAULT 'default',
    run_after timestamptz DEFAULT NULL,
    priority integer DEFAULT 0,
    ordering_key text DEFAULT NULL,
    max_attempts integer DEFAULT NULL,
    ordered_by_commit boolean DEFAULT false
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    new_id bigint;
    size integer := octet_length(args::text) + octet_length(kwargs::text);
    largest integer := coalesce(nullif(current_setting('rowlock.max_argument_bytes', true), ''), '1000000')::integer;
    nested CONSTANT jsonpath := 'strict $.**{100} ? (@.type() == "array" || @.type() == "object")';
BEGIN
    IF coalesce(task_path, '') !~ '^[^\\s.]+(\\.[^\\s.]+)+$' THEN
        RAISE EXCEPTION 'task_path % names no function', coalesce(quote_literal(task_path), 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass the dotted path of a function declared with @task, '
                'for example ''billing.tasks.charge''.';
    END IF;
    IF jsonb_typeof(args) IS DISTINCT FROM 'array' THEN
        RAISE EXCEPTION 'args is %, not a JSON array', coalesce(jsonb_typeof(args), 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass positional arguments as ''[1, "two"]''::jsonb.';
    END IF;
    IF jsonb_typeof(kwargs) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'kwargs is %, not a JSON object', coalesce(jsonb_typeof(kwargs), 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass keyword arguments as ''{"name": "value"}''::jsonb.';
    END IF;
    IF size > largest THEN
        RAISE EXCEPTION 'args and kwargs take % bytes as text, at most % are stored', size, largest
            USING ERRCODE = 'program_limit_exceeded', HINT = 'Keep the data elsewhere and pass its key, '
                'or ALTER DATABASE ... SET rowlock.max_argument_bytes.';
    END IF;
    IF args @? nested OR kwargs @? nested THEN
        RAISE EXCEPTION 'args or kwargs have more than 100 levels'
            USING ERRCODE = 'program_limit_exceeded', HINT = 'Keep the data elsewhere and pass its key.';
    END IF;
    IF length(task_path) > 500 THEN
        RAISE EXCEPTION 'task_path has % characters, at most 500 fit', length(task_path)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass the dotted path of a function declared with @task.';
    END IF;
    IF coalesce(length(queue), 0) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'queue must have 1 to 255 characters'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave it out for the queue ''default''.';
    END IF;
    IF queue ^@ 'demo-' THEN
        RAISE EXCEPTION 'queue % belongs to the demo', quote_literal(queue)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Choose a queue whose name does not begin with demo-.';
    END IF;
    IF length(ordering_key) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'ordering_key must have 1 to 255 characters'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass NULL for no key; hash a long one.';
    END IF;
    IF concat(task_path, queue, ordering_key) ~ '[\\u0001-\\u001f\\u007f-\\u009f]' THEN
        RAISE EXCEPTION 'task_path, queue and ordering_key must not hold control characters'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Remove line breaks, tabs and escapes, or hash the key.';
    END IF;
    IF priority IS NULL OR priority NOT BETWEEN -100 AND 100 THEN
        RAISE EXCEPTION 'priority must be between -100 and 100, not %', coalesce(priority::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Higher ones run first; leave it out for 0.';
    END IF;
    IF max_attempts NOT BETWEEN 1 AND 1000 THEN
        RAISE EXCEPTION 'max_attempts must be between 1 and 1000, not %', max_attempts
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave it out for 5.';
    END IF;
    IF run_after <= '0001-01-02' OR run_after >= '9999-12-30' THEN
        RAISE EXCEPTION 'run_after % is no time that a worker can read', run_after
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass NULL for now.';
    END IF;
    IF ordered_by_commit AND ordering_key IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(hashtext('rowlock:order:' || current_schema()), hashtext(ordering_key) & 1023);
    END IF;
    INSERT INTO tasks_task (task_path, queue_name, priority, args, kwargs, run_after, max_attempts, ordering_key)
    VALUES (task_path, queue, priority, args, kwargs, coalesce(run_after, statement_timestamp()),
            coalesce(max_attempts, 5), ordering_key)
    RETURNING id INTO new_id;
    RETURN new_id;
END $$;
"""

# Replacing a function forgets its settings, so its search_path is set again.
OWN_SEARCH_PATH = """
DO $$ BEGIN
    EXECUTE format('ALTER FUNCTION rowlock_enqueue SET search_path = %I, pg_temp', current_schema());
END $$;
"""

# As in migration 0007, with the limits of names.
ACQUIRE = """
CREATE OR REPLACE FUNCTION rowlock_lock_acquire(
    name text,
    owner text,
    ttl interval,
    hostname text DEFAULT NULL,
    pid integer DEFAULT NULL,
    backend text DEFAULT 'lease',
    has_presence boolean DEFAULT false
) RETURNS bigint LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '1s' AS $$
DECLARE
    seen tasks_lock;
    life text;
    missing_fence bigint;
    new_fence bigint;
BEGIN
    IF coalesce(length(name), 0) NOT BETWEEN 1 AND 255 OR coalesce(length(owner), 0) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'the name and the owner of a lock must have 1 to 255 characters'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Hash what is longer.';
    END IF;
    IF concat(name, owner, hostname) ~ '[\\u0001-\\u001f\\u007f-\\u009f]' THEN
        RAISE EXCEPTION 'the name, the owner and the host of a lock must not hold control characters'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Remove line breaks, tabs and escapes.';
    END IF;
    IF ttl IS NULL OR ttl <= interval '0' OR ttl > interval '1 year' THEN
        RAISE EXCEPTION 'the ttl of a lock must be above zero and at most a year, not %', coalesce(ttl::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass a short one, like ''30 s'', and renew it.';
    END IF;
    SELECT lock.* INTO seen FROM tasks_lock AS lock WHERE lock.name = rowlock_lock_acquire.name;
    life := rowlock_lock_life(seen);
    IF life = 'missing' THEN
        missing_fence := seen.fence;
        PERFORM pg_sleep(0.3);
        SELECT lock.* INTO seen FROM tasks_lock AS lock WHERE lock.name = rowlock_lock_acquire.name;
        life := rowlock_lock_life(seen);
        IF life = 'missing' AND seen.fence <> missing_fence THEN
            RETURN NULL;
        END IF;
    END IF;
    IF life NOT IN ('free', 'expired', 'missing') THEN
        RETURN NULL;
    END IF;
    BEGIN
        IF seen.name IS NULL THEN
            INSERT INTO tasks_lock (name) VALUES (rowlock_lock_acquire.name) ON CONFLICT DO NOTHING;
        END IF;
        UPDATE tasks_lock AS lock
        SET owner = rowlock_lock_acquire.owner, fence = nextval('rowlock_fence'),
            backend = rowlock_lock_acquire.backend, hostname = coalesce(rowlock_lock_acquire.hostname, ''),
            pid = rowlock_lock_acquire.pid, acquired_at = clock_timestamp(), renewed_at = clock_timestamp(),
            expires_at = clock_timestamp() + ttl, released_at = NULL,
            presence_epoch = CASE WHEN has_presence THEN rowlock_epoch() END
        WHERE lock.name = rowlock_lock_acquire.name AND lock.fence = coalesce(seen.fence, 0)
          AND lock.owner IS NOT DISTINCT FROM seen.owner AND lock.expires_at IS NOT DISTINCT FROM seen.expires_at
        RETURNING lock.fence INTO new_fence;
        IF new_fence IS NULL THEN
            RAISE lock_not_available;
        END IF;
    EXCEPTION WHEN lock_not_available OR serialization_failure THEN
        RETURN NULL;
    END;
    RETURN new_fence;
END $$;
"""


def each(statements: str) -> list[str]:
    """One by one, each in a transaction of its own: a worker may hold the locks of these tables in another order."""
    return [f"{statement};" for statement in statements.strip().removesuffix(";").split(";\n")]


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("tasks", "0017_room_for_versions")]

    operations = [
        migrations.RunSQL(ENQUEUE + OWN_SEARCH_PATH, migrations.RunSQL.noop),
        migrations.RunSQL(ACQUIRE, migrations.RunSQL.noop),
        migrations.RunSQL(each(ADD), each(DROP)),
    ]
