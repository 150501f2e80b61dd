"""Named locks as SQL functions: one rule for this project and for programs in other languages.

Call them in autocommit: a lock that is taken in an open transaction is seen by others only after its commit.
"""

from django.db import migrations

# One sequence for all names, so that a fence outlives its row and is enough to tell a holding from every other. Without
# CACHE: a session that kept numbers in reserve would hand out old ones after newer ones.
SEQUENCE = "CREATE SEQUENCE rowlock_fence AS bigint"
FORGET_SEQUENCE = "DROP SEQUENCE rowlock_fence"

# A holder's presence is the advisory lock (class, hashtext(owner)) on its session; the advisory backend's own lock is
# rowlock_lock_key(name). Both carry the schema, as does the channel on which releases are announced: all three are per
# database. search_path is that of the migration, so that callers with another one mean the same locks.
NAMES = """
CREATE FUNCTION rowlock_lock_class() RETURNS integer LANGUAGE sql STABLE SET search_path FROM CURRENT
AS $$ SELECT hashtext('rowlock:lock:' || current_schema()) $$;

CREATE FUNCTION rowlock_lock_key(name text) RETURNS bigint LANGUAGE sql STABLE SET search_path FROM CURRENT
AS $$ SELECT hashtextextended(name, rowlock_lock_class()) $$;

CREATE FUNCTION rowlock_lock_channel() RETURNS text LANGUAGE sql STABLE SET search_path FROM CURRENT
AS $$ SELECT 'rowlock_lock_' || current_schema() $$;
"""
FORGET_NAMES = """
DROP FUNCTION rowlock_lock_channel();
DROP FUNCTION rowlock_lock_key(text);
DROP FUNCTION rowlock_lock_class();
"""

# The epoch is that of tasks/queue/presence.py: presence that was taken in another one proves nothing by its absence. Waiters
# hold a presence lock shared for a moment, so only the exclusive one counts. `objid` is unsigned.
LIFE = """
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
FORGET_LIFE = """
DROP FUNCTION rowlock_lock_life(tasks_lock);
DROP FUNCTION rowlock_lock_life(tasks_lock, boolean, text);
DROP FUNCTION rowlock_lock_presence(text);
DROP FUNCTION rowlock_lock_presences();
DROP FUNCTION rowlock_epoch();
"""

# The look takes no lock: a caller that gets nothing must not hold the row, or its open transaction would keep the holder
# from renewing. For the same reason a lost race is rolled back. A holder that is missing is looked at twice, 0.3 s
# apart, so that one whose session broke can come back (faults F5, F8). The row is taken only as it was seen.
ACQUIRE = """
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
FORGET_ACQUIRE = "DROP FUNCTION rowlock_lock_acquire;"

# A lease that is over is lost even if nobody took it: its holder may have been told so already.
KEEP = """
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
FORGET_KEEP = """
DROP FUNCTION rowlock_lock_release;
DROP FUNCTION rowlock_lock_renew;
"""


class Migration(migrations.Migration):
    dependencies = [("tasks", "0006_locks")]

    operations = [
        migrations.RunSQL(SEQUENCE, FORGET_SEQUENCE),
        migrations.RunSQL(NAMES, FORGET_NAMES),
        migrations.RunSQL(LIFE, FORGET_LIFE),
        migrations.RunSQL(ACQUIRE, FORGET_ACQUIRE),
        migrations.RunSQL(KEEP, FORGET_KEEP),
    ]
