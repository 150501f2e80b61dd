"""The SQL functions: enqueueing and named locks for programs in every language, and what the lock page asks.

Call the lock functions in autocommit: others see a lock that is taken in an open transaction only after its commit.
"""

from django.db import migrations

# It checks what the constraints cannot say clearly, and what a worker in Python could not read back. It does not check
# that the task's function exists: the database does not know the functions. The advisory lock is the one that
# tasks/framework/enqueue.py takes. With a search_path of its own it reaches these tables from any session, and no
# temporary table of the caller hides them.
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
DO $$ BEGIN
    EXECUTE format('ALTER FUNCTION rowlock_enqueue SET search_path = %I, pg_temp', current_schema());
END $$;
"""
FORGET_ENQUEUE = "DROP FUNCTION rowlock_enqueue;"

# One sequence for all names: a fence outlives its row and tells each holding from every other. Without CACHE, because a
# session with numbers in reserve would hand out old ones after newer ones.
FENCE = "CREATE SEQUENCE rowlock_fence AS bigint"
FORGET_FENCE = "DROP SEQUENCE rowlock_fence"

# A holder's presence is the advisory lock (class, hashtext(owner)) on its session; the advisory backend's own lock is
# rowlock_lock_key(name). Both carry the schema, as does the channel on which releases are announced: all three are per
# database. search_path is that of the migration, so that callers with another one mean the same locks.
LOCK_NAMES = """
CREATE FUNCTION rowlock_lock_class() RETURNS integer LANGUAGE sql STABLE SET search_path FROM CURRENT
AS $$ SELECT hashtext('rowlock:lock:' || current_schema()) $$;

CREATE FUNCTION rowlock_lock_key(name text) RETURNS bigint LANGUAGE sql STABLE SET search_path FROM CURRENT
AS $$ SELECT hashtextextended(name, rowlock_lock_class()) $$;

CREATE FUNCTION rowlock_lock_channel() RETURNS text LANGUAGE sql STABLE SET search_path FROM CURRENT
AS $$ SELECT 'rowlock_lock_' || current_schema() $$;
"""
FORGET_LOCK_NAMES = """
DROP FUNCTION rowlock_lock_channel();
DROP FUNCTION rowlock_lock_key(text);
DROP FUNCTION rowlock_lock_class();
"""

# The epoch is that of tasks/queue/presence.py: presence that was taken in another epoch proves nothing by its absence.
# Waiters hold a presence lock shared for a moment, so only the exclusive one counts. `objid` is unsigned.
LOCK_LIFE = """
CREATE FUNCTION rowlock_epoch() RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT extract(epoch FROM pg_postmaster_start_time())::text || '/'
        || coalesce(extract(epoch FROM stats_reset), 0)::text
    FROM pg_stat_bgwriter
$$;

CREATE FUNCTION rowlock_lock_presences() RETURNS SETOF bigint LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    SELECT objid::bigint FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 2 AND granted AND mode = 'ExclusiveLock'
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND classid::bigint = (rowlock_lock_class()::bigint & 4294967295)
$$;

CREATE FUNCTION rowlock_lock_presence(owner text) RETURNS bigint LANGUAGE sql IMMUTABLE
AS $$ SELECT hashtext(owner)::bigint & 4294967295 $$;

CREATE FUNCTION rowlock_lock_life(held tasks_lock, is_present boolean, epoch text) RETURNS text LANGUAGE sql VOLATILE
AS $$
    SELECT CASE
        WHEN held.owner IS NULL THEN 'free'
        WHEN held.expires_at <= clock_timestamp() THEN 'expired'
        WHEN held.presence_epoch IS NULL THEN 'unseen'
        WHEN is_present THEN 'alive'
        WHEN held.presence_epoch = epoch THEN 'missing'
        ELSE 'restarted'
    END
$$;

CREATE FUNCTION rowlock_lock_life(held tasks_lock) RETURNS text LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    SELECT rowlock_lock_life(
        held, rowlock_lock_presence(held.owner) IN (SELECT rowlock_lock_presences()), rowlock_epoch())
$$;
"""
FORGET_LOCK_LIFE = """
DROP FUNCTION rowlock_lock_life(tasks_lock);
DROP FUNCTION rowlock_lock_life(tasks_lock, boolean, text);
DROP FUNCTION rowlock_lock_presence(text);
DROP FUNCTION rowlock_lock_presences();
DROP FUNCTION rowlock_epoch();
"""

# The first read takes no lock: a caller that gets nothing must not hold the row, or its open transaction would keep the
# holder from renewing. A lost race is rolled back for the same reason. A missing holder is checked twice, 0.3 s apart,
# so that one whose session broke can come back (faults F5, F8). The row is taken only if it is still as it was read.
ACQUIRE_LOCK = """
CREATE FUNCTION rowlock_lock_acquire(
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
FORGET_ACQUIRE_LOCK = "DROP FUNCTION rowlock_lock_acquire;"

# A lease that ended is lost even if nobody took it: its holder may have been told so already.
KEEP_LOCK = """
CREATE FUNCTION rowlock_lock_renew(name text, owner text, fence bigint, ttl interval) RETURNS boolean
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF ttl IS NULL OR ttl <= interval '0' OR ttl > interval '1 year' THEN
        RAISE EXCEPTION 'the ttl of a lock must be above zero and at most a year, not %', coalesce(ttl::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Release the lock to give it up.';
    END IF;
    UPDATE tasks_lock AS lock
    SET expires_at = clock_timestamp() + ttl, renewed_at = clock_timestamp(),
        presence_epoch = CASE WHEN lock.presence_epoch IS NOT NULL THEN rowlock_epoch() END
    WHERE lock.name = rowlock_lock_renew.name AND lock.owner = rowlock_lock_renew.owner
      AND lock.fence = rowlock_lock_renew.fence AND lock.expires_at > clock_timestamp();
    RETURN FOUND;
END $$;

CREATE FUNCTION rowlock_lock_release(name text, owner text, fence bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE tasks_lock AS lock
    SET owner = NULL, expires_at = NULL, presence_epoch = NULL, released_at = clock_timestamp()
    WHERE lock.name = rowlock_lock_release.name AND lock.owner = rowlock_lock_release.owner
      AND lock.fence = rowlock_lock_release.fence AND lock.expires_at > clock_timestamp();
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM pg_notify(rowlock_lock_channel(), name);
    RETURN true;
END $$;
"""
FORGET_KEEP_LOCK = """
DROP FUNCTION rowlock_lock_release;
DROP FUNCTION rowlock_lock_renew;
"""

# A row's `xmax` holds a transaction id or, when several sessions lock the row, a multixact id, and SQL cannot tell them
# apart. PostgreSQL raises for the wrong kind, and one such row would cost the lock page all its rows. The errors: XX000
# for an id that was never a multixact, 22023 for 0, 58P01 for one whose segment was removed.
MULTIXACT_MEMBERS = """
CREATE FUNCTION rowlock_multixact_members(x xid) RETURNS TABLE (xid xid, mode text) LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY SELECT member.xid, member.mode FROM pg_get_multixact_members(x) AS member;
EXCEPTION WHEN OTHERS THEN
    RETURN;
END $$;
"""
FORGET_MULTIXACT_MEMBERS = "DROP FUNCTION rowlock_multixact_members(xid);"

# The row keeps the lower half of a 64-bit id; the upper half is that of the nearest id to the present.
IN_PROGRESS = """
CREATE FUNCTION rowlock_in_progress(x xid) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    present bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
    distance bigint := (x::text::bigint - present % 4294967296 + 6442450944) % 4294967296 - 2147483648;
BEGIN
    RETURN pg_xact_status((present + distance)::text::xid8) = 'in progress';
EXCEPTION WHEN OTHERS THEN
    RETURN false;
END $$;
"""
FORGET_IN_PROGRESS = "DROP FUNCTION rowlock_in_progress(xid);"


class Migration(migrations.Migration):
    dependencies = [("tasks", "0003_guards")]

    operations = [
        migrations.RunSQL(ENQUEUE, FORGET_ENQUEUE),
        migrations.RunSQL(FENCE, FORGET_FENCE),
        migrations.RunSQL(LOCK_NAMES, FORGET_LOCK_NAMES),
        migrations.RunSQL(LOCK_LIFE, FORGET_LOCK_LIFE),
        migrations.RunSQL(ACQUIRE_LOCK, FORGET_ACQUIRE_LOCK),
        migrations.RunSQL(KEEP_LOCK, FORGET_KEEP_LOCK),
        migrations.RunSQL(MULTIXACT_MEMBERS, FORGET_MULTIXACT_MEMBERS),
        migrations.RunSQL(IN_PROGRESS, FORGET_IN_PROGRESS),
    ]
