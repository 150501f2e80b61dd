"""The SQL functions: tasks and named locks for programs in any language, limits, the lock page, the archive's months.

Call the lock functions in autocommit: others see a lock that is taken in an open transaction only after its commit.
"""

from django.db import migrations

# It checks what the constraints cannot say clearly, and what a worker in Python could not read back. It does not check
# that the task's function exists: the database does not know the functions. The advisory lock is the one that
# tasks/framework/enqueue.py takes. With a search_path of its own it reaches these tables from any session, and no
# temporary table of the caller hides them. INSERT does not wait for a locked row that has the unique key, only for a
# transaction that is taking or leaving it. That one may end without the key: then the next round finds it free.
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
    ordered_by_commit boolean DEFAULT false,
    unique_key text DEFAULT NULL,
    unique_while text DEFAULT 'active',
    on_duplicate text DEFAULT 'keep',
    concurrency_key text DEFAULT NULL,
    traceparent text DEFAULT NULL
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
    IF traceparent !~ '^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$' THEN
        RAISE EXCEPTION 'traceparent % has not the form of W3C trace context', quote_literal(traceparent)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass NULL for no trace, or the header as your tracer '
                'writes it: ''00-<32 hex digits>-<16 hex digits>-01''.';
    END IF;
    IF ordered_by_commit AND ordering_key IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(hashtext('rowlock:order:' || current_schema()), hashtext(ordering_key) & 1023);
    END IF;
    IF unique_key IS NULL THEN
        INSERT INTO tasks_task (task_path, queue_name, priority, args, kwargs, run_after, max_attempts, ordering_key,
            concurrency_key, traceparent)
        VALUES (task_path, queue, priority, args, kwargs, coalesce(run_after, statement_timestamp()),
            coalesce(max_attempts, 5), ordering_key, concurrency_key, traceparent)
        RETURNING id INTO found_id;
        RETURN found_id;
    END IF;
    BEGIN
        FOR round IN 1..20 LOOP
            INSERT INTO tasks_task (task_path, queue_name, priority, args, kwargs, run_after, max_attempts, ordering_key,
                unique_key, unique_while, concurrency_key, traceparent)
            VALUES (task_path, queue, priority, args, kwargs, coalesce(run_after, statement_timestamp()),
                coalesce(max_attempts, 5), ordering_key, unique_key, left(unique_while, 1), concurrency_key,
                traceparent)
            ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (
                (status = 'READY' AND unique_while IN ('q', 'a')) OR (status = 'PROCESSING' AND unique_while = 'a'))
            DO NOTHING RETURNING id INTO found_id;
            IF found_id IS NULL AND rowlock_enqueue.on_duplicate = 'replace' THEN
                UPDATE tasks_task AS task
                SET args = rowlock_enqueue.args, kwargs = rowlock_enqueue.kwargs, priority = rowlock_enqueue.priority,
                    run_after = coalesce(rowlock_enqueue.run_after, statement_timestamp()), version = task.version + 1,
                    traceparent = rowlock_enqueue.traceparent
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

# The rates that a task must keep: that of its concurrency key, of its rate key, of its queue. `due`: how many may start
# now, at `gap` seconds from each other. Up to 0.4 s of a rate may be caught up, so that it is met by workers that are
# late, and no second sees more than 1.4 times as many.
RATES = """
CREATE FUNCTION rowlock_rates(
    of_key text, of_rate_key text, own_rate integer, own_period integer, of_queue text
) RETURNS TABLE (name text, gap float8, next_at timestamptz, due integer) LANGUAGE sql STABLE AS $$
    SELECT rated.name, rated.gap, bucket.since,
        CASE WHEN bucket.since <= clock.now
             THEN floor(date_part('epoch', clock.now - bucket.since) / rated.gap)::integer + 1 ELSE 0 END
    FROM (SELECT clock_timestamp() AS now) AS clock
    CROSS JOIN (
        SELECT 'key:' || held.key, held.period_seconds / held.rate::float8 FROM tasks_limit AS held
        WHERE held.key = of_key AND held.rate IS NOT NULL AND of_key IS DISTINCT FROM of_rate_key
        UNION ALL
        SELECT 'key:' || of_rate_key, coalesce(held.period_seconds / held.rate::float8, own_period / own_rate::float8)
        FROM (SELECT) AS one LEFT JOIN tasks_limit AS held ON held.key = of_rate_key
        WHERE coalesce(held.rate, own_rate) IS NOT NULL AND of_rate_key IS NOT NULL
        UNION ALL
        SELECT 'queue:' || queue.name, queue.period_seconds / queue.rate::float8 FROM tasks_queue AS queue
        WHERE queue.name = of_queue AND queue.rate IS NOT NULL) AS rated (name, gap)
    CROSS JOIN LATERAL (
        SELECT greatest(clock.now - interval '0.4 seconds', (
            SELECT full_at.next_at FROM tasks_bucket AS full_at WHERE full_at.name = rated.name)) AS since) AS bucket
$$;
"""
FORGET_RATES = "DROP FUNCTION rowlock_rates;"

# How many tasks of a queue with a limit may begin now. None: `look_at` is when to look again.
ROOM = """
CREATE FUNCTION rowlock_queue_room(queue text, OUT room integer, OUT look_at timestamptz) LANGUAGE plpgsql STABLE AS $$
BEGIN
    room := coalesce((SELECT full_at.max_running FROM tasks_queue AS full_at WHERE full_at.name = queue) - (
        SELECT count(*) FROM tasks_task AS task WHERE task.queue_name = queue AND task.status = 'PROCESSING'), 32767);
    IF room <= 0 THEN
        room := 0;
        look_at := clock_timestamp() + interval '0.1 seconds';
        RETURN;
    END IF;
    SELECT least(room, min(rates.due)), max(rates.next_at) FILTER (WHERE rates.due = 0) INTO room, look_at
    FROM rowlock_rates(NULL, NULL, NULL, NULL, queue) AS rates;
END $$;
"""
FORGET_ROOM = "DROP FUNCTION rowlock_queue_room;"

# Which of these tasks, locked by the claim that calls this, may begin: each in a slot of its key and its queue, and
# within its rates. Here and nowhere else are slots given and rates taken from.
#
# Two claims never meet in a slot: one takes an advisory lock on it until it commits, then looks whether the slot is
# still free. Each statement here sees what was committed before it; the claim around it may not. The unique index is
# the guard. Slots share 1,024 locks, as all sessions share the server's lock table; who meets a lock passes on.
#
# Statistics that were gathered while nothing ran call every index of running tasks empty, so the planner picks any of
# them, and would read all running tasks for each key. An ORDER BY that only the index of the slots serves decides it.
#
# n rows above the limit, or without a slot, keep the n highest free slots empty. So while a limit that was lowered is
# exceeded nothing begins, and two claims cannot begin one task each where there is room for one.
ADMIT = """
CREATE FUNCTION rowlock_admit(ids bigint[], places bigint[])
RETURNS TABLE (id bigint, place bigint, slot smallint, queue_slot smallint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    lock_class CONSTANT integer := hashtext('rowlock:slot:' || current_schema());
    slots smallint[];
    queue_slots smallint[];
    names text[];
    gaps float8[];
    since timestamptz[];
    due integer[];
    spent integer[];
    is_rated boolean;
    seat record;
    number integer;
BEGIN
    IF ids IS NULL THEN
        RETURN;
    END IF;
    WITH asked AS MATERIALIZED (
        SELECT task.id, asked.place, task.concurrency_key AS key, task.queue_name, queue.max_running,
            task.rate_key IS NOT NULL OR held.rate IS NOT NULL OR queue.rate IS NOT NULL AS is_rated,
            CASE WHEN held.paused OR rated.paused THEN 0 ELSE coalesce(
                held.max_running, task.concurrency_limit, CASE WHEN task.rate_key IS NULL THEN 1 ELSE 32767 END) END
                AS most
        FROM unnest(ids, places) AS asked (id, place) JOIN tasks_task AS task ON task.id = asked.id
        LEFT JOIN tasks_limit AS held ON held.key = task.concurrency_key
        LEFT JOIN tasks_limit AS rated ON rated.key = task.rate_key
        LEFT JOIN tasks_queue AS queue ON queue.name = task.queue_name
    ), of_key AS MATERIALIZED (
        SELECT key, min(most) AS most, count(*)::integer AS number, array_agg(id ORDER BY place) AS ids,
            array_agg(place ORDER BY place) AS places, array_agg(queue_name ORDER BY place) AS queue_names,
            array_agg(max_running ORDER BY place) AS max_running
        FROM asked WHERE key IS NOT NULL GROUP BY key
    ), seated AS MATERIALIZED (
        SELECT of_key.ids[free.nth] AS id, of_key.places[free.nth] AS place, free.slot,
            of_key.queue_names[free.nth] AS queue_name, of_key.max_running[free.nth] AS max_running
        FROM of_key
        CROSS JOIN LATERAL (SELECT ARRAY(
            SELECT holder.slot FROM tasks_task AS holder
            WHERE holder.concurrency_key = of_key.key AND holder.status = 'PROCESSING' ORDER BY holder.slot) AS slots
        ) AS held
        CROSS JOIN LATERAL (
            SELECT slot, row_number() OVER () AS nth FROM (
                SELECT slot FROM (
                    SELECT slot FROM (SELECT generate_series(1, of_key.most)::smallint AS slot) AS every
                    WHERE slot <> ALL (held.slots) LIMIT greatest(0, of_key.most - cardinality(held.slots))) AS empty
                WHERE pg_try_advisory_xact_lock(lock_class, hashtext('key:' || of_key.key || ':' || slot) & 1023)
                LIMIT of_key.number) AS locked) AS free
        UNION ALL
        SELECT id, place, NULL, queue_name, max_running FROM asked WHERE key IS NULL
    ), of_queue AS MATERIALIZED (
        SELECT queue_name, max(max_running) AS most, count(*)::integer AS number, array_agg(id ORDER BY place) AS ids,
            array_agg(place ORDER BY place) AS places, array_agg(slot ORDER BY place) AS slots
        FROM seated WHERE max_running IS NOT NULL GROUP BY queue_name
    ), placed AS (
        SELECT of_queue.ids[free.nth] AS id, of_queue.places[free.nth] AS place, of_queue.slots[free.nth] AS slot,
            free.slot AS queue_slot
        FROM of_queue
        CROSS JOIN LATERAL (
            SELECT coalesce(array_agg(holder.queue_slot) FILTER (WHERE holder.queue_slot IS NOT NULL), '{}') AS slots,
                count(*) AS number
            FROM tasks_task AS holder WHERE holder.queue_name = of_queue.queue_name AND holder.status = 'PROCESSING'
        ) AS held
        CROSS JOIN LATERAL (
            SELECT slot, row_number() OVER () AS nth FROM (
                SELECT slot FROM (
                    SELECT slot FROM (SELECT generate_series(1, of_queue.most)::smallint AS slot) AS every
                    WHERE slot <> ALL (held.slots) LIMIT greatest(0, of_queue.most - held.number)) AS empty
                WHERE pg_try_advisory_xact_lock(
                    lock_class, hashtext('queue:' || of_queue.queue_name || ':' || slot) & 1023)
                LIMIT of_queue.number) AS locked) AS free
        UNION ALL
        SELECT id, place, slot, NULL FROM seated WHERE max_running IS NULL
    )
    SELECT array_agg(placed.id ORDER BY placed.place), array_agg(placed.place ORDER BY placed.place),
        array_agg(placed.slot ORDER BY placed.place), array_agg(placed.queue_slot ORDER BY placed.place),
        (SELECT bool_or(asked.is_rated) FROM asked)
    INTO ids, places, slots, queue_slots, is_rated FROM placed;
    IF NOT is_rated THEN
        RETURN QUERY
        SELECT seat.id, seat.place, seat.slot, seat.queue_slot
        FROM unnest(ids, places, slots, queue_slots) AS seat (id, place, slot, queue_slot)
        JOIN tasks_task AS task ON task.id = seat.id
        WHERE (SELECT holder.id FROM tasks_task AS holder
               WHERE holder.concurrency_key = task.concurrency_key AND holder.slot BETWEEN seat.slot AND seat.slot
                 AND holder.status = 'PROCESSING' ORDER BY holder.slot LIMIT 1) IS NULL
          AND (SELECT holder.id FROM tasks_task AS holder
               WHERE holder.queue_name = task.queue_name AND holder.queue_slot BETWEEN seat.queue_slot AND seat.queue_slot
                 AND holder.status = 'PROCESSING' ORDER BY holder.queue_slot LIMIT 1) IS NULL;
        RETURN;
    END IF;
    SELECT array_agg(rates.name ORDER BY rates.name), array_agg(rates.gap ORDER BY rates.name) INTO names, gaps FROM (
        SELECT rates.name, max(rates.gap) AS gap
        FROM unnest(ids) AS seat (id) JOIN tasks_task AS task ON task.id = seat.id
        CROSS JOIN LATERAL rowlock_rates(
            task.concurrency_key, task.rate_key, task.rate, task.period_seconds, task.queue_name) AS rates
        GROUP BY rates.name) AS rates;
    INSERT INTO tasks_bucket (name, next_at)
    SELECT wanted.name, '-infinity' FROM unnest(names) AS wanted (name) ORDER BY wanted.name ON CONFLICT DO NOTHING;
    WITH locked AS MATERIALIZED (
        SELECT bucket.name, greatest(bucket.next_at, clock_timestamp() - interval '0.4 seconds') AS since
        FROM tasks_bucket AS bucket WHERE bucket.name = ANY(names) FOR NO KEY UPDATE SKIP LOCKED
    )
    SELECT array_agg(locked.name), array_agg(wanted.gap), array_agg(locked.since), array_agg(0),
        array_agg(CASE WHEN locked.since <= clock_timestamp() THEN 1 + floor(
            date_part('epoch', clock_timestamp() - locked.since) / wanted.gap)::integer ELSE 0 END)
    INTO names, gaps, since, spent, due
    FROM locked JOIN unnest(names, gaps) AS wanted (name, gap) ON wanted.name = locked.name;
    FOR seat IN
        SELECT seat.id, seat.place, seat.slot, seat.queue_slot, ARRAY(
            SELECT array_position(names, rates.name) FROM rowlock_rates(
                task.concurrency_key, task.rate_key, task.rate, task.period_seconds, task.queue_name) AS rates
            ) AS buckets
        FROM unnest(ids, places, slots, queue_slots) AS seat (id, place, slot, queue_slot)
        JOIN tasks_task AS task ON task.id = seat.id
        WHERE (SELECT holder.id FROM tasks_task AS holder
               WHERE holder.concurrency_key = task.concurrency_key AND holder.slot BETWEEN seat.slot AND seat.slot
                 AND holder.status = 'PROCESSING' ORDER BY holder.slot LIMIT 1) IS NULL
          AND (SELECT holder.id FROM tasks_task AS holder
               WHERE holder.queue_name = task.queue_name AND holder.queue_slot BETWEEN seat.queue_slot AND seat.queue_slot
                 AND holder.status = 'PROCESSING' ORDER BY holder.queue_slot LIMIT 1) IS NULL
        ORDER BY seat.place
    LOOP
        IF NOT EXISTS (
            SELECT FROM unnest(seat.buckets) AS bucket (number)
            WHERE bucket.number IS NULL OR spent[bucket.number] >= due[bucket.number]) THEN
            FOREACH number IN ARRAY seat.buckets LOOP
                spent[number] := spent[number] + 1;
            END LOOP;
            id := seat.id; place := seat.place; slot := seat.slot; queue_slot := seat.queue_slot;
            RETURN NEXT;
        END IF;
    END LOOP;
    UPDATE tasks_bucket AS bucket SET next_at = used.since + used.gap * used.spent * interval '1 second'
    FROM unnest(names, gaps, since, spent) AS used (name, gap, since, spent)
    WHERE bucket.name = used.name AND used.spent > 0;
END $$;
"""
FORGET_ADMIT = "DROP FUNCTION rowlock_admit;"

# ATTACH lets others read and write the archive meanwhile; CREATE TABLE … PARTITION OF would wait for them. Months are
# those of UTC. With search_path of their own, the functions may be given their owner's rights: see docs/roles.sql.
MONTHS = """
CREATE FUNCTION rowlock_make_archive(day date) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    first CONSTANT date := date_trunc('month', day::timestamp);
    name CONSTANT text := 'tasks_archive_' || to_char(first, 'YYYYMM');
BEGIN
    IF to_regclass(name) IS NOT NULL THEN
        RETURN false;
    END IF;
    -- Its rows never change: autovacuum freezes them as they come, and not a hundred million of them at once.
    EXECUTE format('CREATE TABLE %I (LIKE tasks_archive INCLUDING ALL)
        WITH (autovacuum_freeze_min_age = 0, autovacuum_vacuum_insert_scale_factor = 0.05)', name);
    EXECUTE format('ALTER TABLE tasks_archive ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', name,
        first || ' 00:00+00', (first + interval '1 month')::date || ' 00:00+00');
    RETURN true;
END $$;

CREATE FUNCTION rowlock_drop_archive(before date) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    name text;
BEGIN
    FOR name IN
        SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
        WHERE inhparent = 'tasks_archive'::regclass
          AND relname < 'tasks_archive_' || to_char(before, 'YYYYMM') COLLATE "C"
        ORDER BY relname
    LOOP
        EXECUTE format('DROP TABLE %I', name);
        RETURN NEXT name;
    END LOOP;
END $$;
DO $$ BEGIN
    EXECUTE format('ALTER FUNCTION rowlock_make_archive SET search_path = %I, pg_temp', current_schema());
    EXECUTE format('ALTER FUNCTION rowlock_drop_archive SET search_path = %I, pg_temp', current_schema());
END $$;
"""
FORGET_MONTHS = "DROP FUNCTION rowlock_drop_archive(date); DROP FUNCTION rowlock_make_archive(date);"


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
        migrations.RunSQL(RATES, FORGET_RATES),
        migrations.RunSQL(ROOM, FORGET_ROOM),
        migrations.RunSQL(ADMIT, FORGET_ADMIT),
        migrations.RunSQL(MONTHS, FORGET_MONTHS),
    ]
