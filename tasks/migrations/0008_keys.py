"""Unique keys and concurrency keys: columns, the index that makes a unique key true, and `rowlock_enqueue` with both."""

from importlib import import_module

from django.db import migrations, models

# Every statement that writes a row reads the text of all CHECKs anew, so this one is short. Three with these rules made
# rowlock_enqueue() of a task without keys a third slower. A NULL passes, so such a task matches no pattern.
VALID_KEYS = """
ALTER TABLE tasks_task ADD CONSTRAINT tasks_task_keys_valid CHECK (
    (unique_key IS NULL) = (unique_while IS NULL)
    AND unique_while || unique_key COLLATE "C" ~ '^[qab][^\\u0001-\\u001f\\u007f-\\u009f]{1,255}$'
    AND concurrency_key COLLATE "C" ~ '^[^\\u0001-\\u001f\\u007f-\\u009f]{1,255}$'
    AND concurrency_limit BETWEEN 1 AND 10000 * num_nonnulls(concurrency_key));
"""
ANY_KEYS = "ALTER TABLE tasks_task DROP CONSTRAINT tasks_task_keys_valid;"

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
KEEP = "DROP TRIGGER rowlock_give_up_key ON tasks_task; DROP FUNCTION rowlock_give_up_key();"

# As in migration 0004, with the keys. INSERT does not wait for a locked row that has the key, only for a transaction
# that is taking or leaving it. That one may end without the key: then the next round finds it free.
ENQUEUE = """
ALTER FUNCTION rowlock_enqueue RENAME TO rowlock_enqueue_without_keys;
CREATE FUNCTION rowlock_enqueue(
    task_path text,
    args jsonb DEFAULT '[]',
    kwargs jsonb DEFAULT '{}',
    queue text DEFAULT 'default',
    run_after timestamptz DEFAULT NULL,
    priority integer DEFAULT 0,
    ordering_key text DEFAULT NULL,
    max_attempts integer DEFAULT NULL,
    ordered_by_commit boolean DEFAULT false,
    unique_key text DEFAULT NULL,
    unique_while text DEFAULT 'active',
    on_duplicate text DEFAULT 'keep',
    concurrency_key text DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    found_id bigint;
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
    IF length(unique_key) NOT BETWEEN 1 AND 255 OR length(concurrency_key) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'unique_key and concurrency_key must have 1 to 255 characters'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass NULL for no key; hash a long one.';
    END IF;
    IF concat(task_path, queue, ordering_key, unique_key, concurrency_key) ~ '[\\u0001-\\u001f\\u007f-\\u009f]' THEN
        RAISE EXCEPTION 'task_path, queue and the keys must not hold control characters'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Remove line breaks, tabs and escapes, or hash the key.';
    END IF;
    IF unique_while IS NULL OR unique_while NOT IN ('queued', 'active') THEN
        RAISE EXCEPTION 'unique_while must be queued or active, not %', coalesce(quote_literal(unique_while), 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave it out for ''active'': until the task has ended.';
    END IF;
    IF on_duplicate IS NULL OR on_duplicate NOT IN ('keep', 'replace') THEN
        RAISE EXCEPTION 'on_duplicate must be keep or replace, not %', coalesce(quote_literal(on_duplicate), 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave it out for ''keep'': the waiting task stays.';
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
    IF unique_key IS NULL THEN
        INSERT INTO tasks_task (task_path, queue_name, priority, args, kwargs, run_after, max_attempts, ordering_key,
            concurrency_key)
        VALUES (task_path, queue, priority, args, kwargs, coalesce(run_after, statement_timestamp()),
            coalesce(max_attempts, 5), ordering_key, concurrency_key)
        RETURNING id INTO found_id;
        RETURN found_id;
    END IF;
    BEGIN
        FOR round IN 1..20 LOOP
            INSERT INTO tasks_task (task_path, queue_name, priority, args, kwargs, run_after, max_attempts, ordering_key,
                unique_key, unique_while, concurrency_key)
            VALUES (task_path, queue, priority, args, kwargs, coalesce(run_after, statement_timestamp()),
                coalesce(max_attempts, 5), ordering_key, unique_key, left(unique_while, 1), concurrency_key)
            ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (
                (status = 'READY' AND unique_while IN ('q', 'a')) OR (status = 'PROCESSING' AND unique_while = 'a'))
            DO NOTHING RETURNING id INTO found_id;
            IF found_id IS NULL AND rowlock_enqueue.on_duplicate = 'replace' THEN
                UPDATE tasks_task AS task
                SET args = rowlock_enqueue.args, kwargs = rowlock_enqueue.kwargs, priority = rowlock_enqueue.priority,
                    run_after = coalesce(rowlock_enqueue.run_after, statement_timestamp()), version = task.version + 1
                WHERE task.unique_key = rowlock_enqueue.unique_key
                  AND task.status = 'READY' AND task.unique_while IN ('q', 'a')
                  AND NOT EXISTS (
                    SELECT FROM tasks_progress WHERE tasks_progress.task_id = task.id AND state IS NOT NULL)
                RETURNING task.id INTO found_id;
            END IF;
            IF found_id IS NULL THEN
                SELECT task.id INTO found_id FROM tasks_task AS task
                WHERE task.unique_key = rowlock_enqueue.unique_key AND (
                    (task.status = 'READY' AND task.unique_while IN ('q', 'a'))
                    OR (task.status = 'PROCESSING' AND task.unique_while = 'a'));
            END IF;
            IF found_id IS NOT NULL THEN
                RETURN found_id;
            END IF;
        END LOOP;
    EXCEPTION WHEN lock_not_available THEN
        RAISE EXCEPTION 'unique_key % is held up by another transaction, which did not end within lock_timeout (%)',
                quote_literal(unique_key), current_setting('lock_timeout')
            USING ERRCODE = 'lock_not_available', HINT = 'Call again, or raise lock_timeout. '
                'While a call waits, `show_locks --blocked` names that transaction.';
    END;
    RAISE EXCEPTION 'unique_key % changed hands 20 times while this call looked for its task', quote_literal(unique_key)
        USING ERRCODE = 'lock_not_available', HINT = 'Call again.';
END $$;
"""
# Rights and owner of the earlier function. With a search_path of its own it reaches these tables from any session.
SAME_RIGHTS = """
DO $$
DECLARE
    earlier pg_proc;
    caller record;
BEGIN
    SELECT * INTO earlier FROM pg_proc
    WHERE proname = 'rowlock_enqueue_without_keys' AND pronamespace = current_schema()::regnamespace;
    EXECUTE format('ALTER FUNCTION rowlock_enqueue SET search_path = %I, pg_temp', current_schema());
    IF earlier.prosecdef THEN
        ALTER FUNCTION rowlock_enqueue SECURITY DEFINER;
    END IF;
    IF earlier.proacl IS NOT NULL THEN
        REVOKE ALL ON FUNCTION rowlock_enqueue FROM PUBLIC;
        FOR caller IN SELECT * FROM aclexplode(earlier.proacl) LOOP
            EXECUTE format('GRANT EXECUTE ON FUNCTION rowlock_enqueue TO %s%s',
                CASE WHEN caller.grantee = 0 THEN 'PUBLIC' ELSE caller.grantee::regrole::text END,
                CASE WHEN caller.is_grantable AND caller.grantee <> earlier.proowner THEN ' WITH GRANT OPTION' ELSE '' END);
        END LOOP;
    END IF;
    IF earlier.proowner <> (SELECT proowner FROM pg_proc
            WHERE proname = 'rowlock_enqueue' AND pronamespace = current_schema()::regnamespace) THEN
        EXECUTE format('ALTER FUNCTION rowlock_enqueue OWNER TO %s', earlier.proowner::regrole);
    END IF;
    DROP FUNCTION rowlock_enqueue_without_keys;
END $$;
"""
ENQUEUE_WITHOUT_KEYS = "DROP FUNCTION rowlock_enqueue;" + import_module("tasks.migrations.0004_functions").ENQUEUE


class Migration(migrations.Migration):
    dependencies = [("tasks", "0007_telling")]

    operations = [
        migrations.AddField("task", "unique_key", models.TextField(blank=True, null=True)),
        migrations.AddField(
            "task",
            "unique_while",
            models.TextField(
                blank=True,
                choices=[("q", "While it is queued"), ("a", "Until it has ended"), ("b", "Given up")],
                null=True,
            ),
        ),
        migrations.AddField("task", "concurrency_key", models.TextField(blank=True, null=True)),
        migrations.AddField("task", "concurrency_limit", models.SmallIntegerField(blank=True, null=True)),
        migrations.AddConstraint(
            "task",
            models.UniqueConstraint(
                condition=models.Q(
                    ("unique_key__isnull", False),
                    models.Q(
                        models.Q(("status", "READY"), ("unique_while__in", ("q", "a"))),
                        models.Q(("status", "PROCESSING"), ("unique_while", "a")),
                        _connector="OR",
                    ),
                ),
                fields=("unique_key",),
                name="tasks_task_one_per_unique_key",
            ),
        ),
        migrations.RunSQL(VALID_KEYS, ANY_KEYS),
        migrations.RunSQL(GIVE_UP, KEEP),
        migrations.RunSQL([ENQUEUE, SAME_RIGHTS], ENQUEUE_WITHOUT_KEYS),
    ]
