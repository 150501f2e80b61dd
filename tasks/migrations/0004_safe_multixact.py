"""What `tasks.locking.rowlocks` asks of one transaction id, safe against ids that are not what they look like.

A row's `xmax` holds a transaction id or, when several sessions lock the row, a multixact id, and SQL cannot tell them
apart. Asked for the wrong kind, PostgreSQL raises; one such row would cost the whole page.
"""

from django.db import migrations

# WHEN OTHERS: XX000 for an id that was never a multixact, 22023 for 0, 58P01 for one whose segment was removed.
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
    dependencies = [("tasks", "0003_sql_enqueue")]

    operations = [
        migrations.RunSQL(MULTIXACT_MEMBERS, FORGET_MULTIXACT_MEMBERS),
        migrations.RunSQL(IN_PROGRESS, FORGET_IN_PROGRESS),
    ]
