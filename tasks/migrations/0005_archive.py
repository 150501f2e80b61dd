"""The archive: finished tasks by month, with the functions that make its partitions and drop them."""

from django.db import migrations, models

# A row keeps its attempts and log lines, so that they go with its month: a table of theirs would have to be searched.
# Pages read it by the end of the task, newest first, which is the order of the partitions. There is no DEFAULT
# partition, because the partitions would have no order beside it.
ARCHIVE = """
CREATE TABLE tasks_archive (
    LIKE tasks_task,
    archived_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    attempts jsonb,
    log jsonb,
    PRIMARY KEY (finished_at, id)
) PARTITION BY RANGE (finished_at);
CREATE INDEX tasks_archive_id ON tasks_archive (id);
CREATE INDEX tasks_archive_task ON tasks_archive (task_path, finished_at, id);
CREATE INDEX tasks_archive_ordering_key ON tasks_archive (ordering_key, finished_at, id)
    WHERE ordering_key IS NOT NULL;
CREATE INDEX tasks_archive_unique_key ON tasks_archive (unique_key, finished_at, id) WHERE unique_key IS NOT NULL;
CREATE INDEX tasks_archive_unsuccessful ON tasks_archive (finished_at, id) WHERE status IN ('FAILED', 'CANCELLED');
"""

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
    dependencies = [("tasks", "0004_functions")]

    operations = [
        migrations.CreateModel(
            "ArchivedTask",
            fields=[("id", models.BigIntegerField(primary_key=True, serialize=False))],
            options={"db_table": "tasks_archive", "default_permissions": (), "managed": False},
        ),
        migrations.RunSQL(ARCHIVE, "DROP TABLE tasks_archive"),
        migrations.RunSQL(MONTHS, FORGET_MONTHS),
    ]
