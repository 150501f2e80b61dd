"""Slots and rates: the functions that give them to the tasks of a claim, and the trigger that frees them."""

from django.db import migrations

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

# A row leaves its slots with its status, whoever ends it. And nobody begins one above the limit, raw SQL included; a
# claim that meets a limit lowered since it looked tries again. Claims and completions call the first two for rows with
# slots alone, and the second one only above slot 1. One check says the rest, because every statement prepares each
# check anew: six checks cost a claim 0.1 ms.
GUARDS = """
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
NO_GUARDS = """
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


class Migration(migrations.Migration):
    dependencies = [("tasks", "0009_limits")]

    operations = [
        migrations.RunSQL(RATES, FORGET_RATES),
        migrations.RunSQL(ROOM, FORGET_ROOM),
        migrations.RunSQL(ADMIT, FORGET_ADMIT),
        migrations.RunSQL(GUARDS, NO_GUARDS),
    ]
