"""`rowlock_enqueue()`: enqueueing for programs in other languages, in their own transaction.

It checks what the constraints cannot say clearly, and what a worker in Python could not read back. Whether anybody knows
the task's function is not checked: the database does not know the functions, and workers may be newer than this caller.
"""

from django.db import migrations

# A row that Python cannot read would stop every claim that meets it: '-infinity', or years beyond datetime's.
READABLE_TIMES = """
ALTER TABLE tasks_task ADD CONSTRAINT tasks_task_run_after_readable
    CHECK (run_after > '0001-01-02' AND run_after < '9999-12-30');
"""
ANY_TIME = "ALTER TABLE tasks_task DROP CONSTRAINT tasks_task_run_after_readable;"

# The advisory lock is the one that tasks/framework/enqueue.py takes.
ENQUEUE = """
CREATE FUNCTION rowlock_enqueue(
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
    IF coalesce(length(queue), 0) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'queue must have 1 to 255 characters'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave it out for the queue ''default''.';
    END IF;
    IF length(ordering_key) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'ordering_key must have 1 to 255 characters'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass NULL for no key; hash a long one.';
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
# Callers with another search_path reach these tables, and no temporary table of theirs stands before them.
OWN_SEARCH_PATH = """
DO $$ BEGIN
    EXECUTE format('ALTER FUNCTION rowlock_enqueue SET search_path = %I, pg_temp', current_schema());
END $$;
"""
FORGET_ENQUEUE = "DROP FUNCTION rowlock_enqueue;"


class Migration(migrations.Migration):
    dependencies = [("tasks", "0002_database_objects")]

    operations = [
        migrations.RunSQL(READABLE_TIMES, ANY_TIME),
        migrations.RunSQL(ENQUEUE + OWN_SEARCH_PATH, FORGET_ENQUEUE),
    ]
