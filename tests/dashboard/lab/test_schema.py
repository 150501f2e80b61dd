"""The lab's schema is like the real one in everything that guards a row, and reaches nothing else."""

import psycopg
import pytest
from django.db import connection

from dashboard.lab import schema
from tests.commands import database_url
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

NAMED_PARTS = """
SELECT 'constraint', conrelid::regclass::text, conname,
    replace(replace(pg_get_constraintdef(oid), %(schema)s || '.', ''), ' NOT VALID', '')  -- all of the new table is
FROM pg_constraint WHERE connamespace = %(schema)s::regnamespace AND contype <> 'n'
UNION ALL
SELECT 'index', tablename, indexname, replace(indexdef, %(schema)s || '.', '')
FROM pg_indexes WHERE schemaname = %(schema)s
UNION ALL
SELECT 'trigger', tgrelid::regclass::text, tgname, replace(pg_get_triggerdef(trigger.oid), %(schema)s || '.', '')
FROM pg_trigger AS trigger JOIN pg_class AS class ON class.oid = tgrelid
WHERE class.relnamespace = %(schema)s::regnamespace AND NOT tgisinternal
UNION ALL
SELECT 'options', relname, '', coalesce(array_to_string(reloptions, ','), '') FROM pg_class
WHERE relnamespace = %(schema)s::regnamespace AND relkind = 'r'
UNION ALL
SELECT 'function', proname, coalesce((
    SELECT string_agg(setting, ',') FROM unnest(proconfig) AS setting WHERE setting NOT LIKE 'search_path=%%'), ''),
    prosrc
FROM pg_proc WHERE pronamespace = %(schema)s::regnamespace
UNION ALL
SELECT 'default', adrelid::regclass::text, attname, pg_get_expr(adbin, adrelid)
FROM pg_attrdef JOIN pg_attribute ON attrelid = adrelid AND attnum = adnum
JOIN pg_class AS class ON class.oid = adrelid WHERE class.relnamespace = %(schema)s::regnamespace
UNION ALL
SELECT 'sequence', '', relname, '' FROM pg_class AS class
WHERE relkind = 'S' AND relnamespace = %(schema)s::regnamespace
  AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = class.oid AND deptype = 'i')
"""


@pytest.fixture
def lab():
    """A connection that sees a lab schema alone, and the schema's name."""
    name = schema.new_name()
    with (
        psycopg.connect(database_url(), autocommit=True) as control,
        schema.schema(control, name),
        psycopg.connect(database_url(), autocommit=True, options=f"-c search_path={name}") as alone,
    ):
        yield alone, name


def parts(conn: psycopg.Connection, name: str) -> set[tuple[str, ...]]:
    conn.execute("SET search_path = ''")
    found = conn.execute(NAMED_PARTS, {"schema": name}).fetchall()
    conn.execute(f"SET search_path = {name}")
    return {tuple(part.replace(f"{name}.", "") for part in row) for row in found}


def test_it_has_every_constraint_index_trigger_option_and_function(lab):
    alone, name = lab
    copied = parts(alone, name)
    tables = {table for kind, table, *_ in copied if kind == "options"}
    live = {part for part in parts(alone, "public") if part[1] in tables or part[0] in ("function", "sequence")}
    assert {model._meta.db_table for model in schema.copied_models()} <= tables
    assert live - copied == set()
    assert copied - live == set()


def test_the_version_trigger_works_there(lab):
    alone, _ = lab
    [(task_id,)] = alone.execute("INSERT INTO tasks_task (task_path) VALUES ('a') RETURNING id").fetchall()
    alone.execute("UPDATE tasks_task SET priority = 3")
    assert alone.execute("SELECT version FROM tasks_task WHERE id = %s", [task_id]).fetchall() == [(2,)]


def test_a_function_with_a_path_of_its_own_stays_in_the_schema(lab):
    """As copied it would find the live tables from within the lab."""
    alone, _ = lab
    alone.execute("SELECT rowlock_lock_acquire('nightly', 'me', interval '1 minute')")
    alone.execute("SELECT rowlock_enqueue('a.b')")
    counts = "SELECT (SELECT count(*) FROM tasks_lock), (SELECT count(*) FROM tasks_task)"
    assert alone.execute(counts).fetchall() == [(1, 1)]
    with connection.cursor() as cursor:
        cursor.execute(counts)
        assert cursor.fetchall() == [(0, 0)]


def test_a_column_that_draws_from_a_sequence_draws_from_a_copy():
    """As an AutoField of an older Django does."""
    with psycopg.connect(database_url(), autocommit=True) as control:
        control.execute("ALTER TABLE orders_entry ALTER id DROP IDENTITY")
        control.execute("CREATE SEQUENCE old_id OWNED BY orders_entry.id")
        control.execute("ALTER TABLE orders_entry ALTER id SET DEFAULT nextval('old_id')")
        try:
            with schema.schema(control, schema.new_name()) as name:
                default = (
                    "SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = %s::regclass AND adnum = 1"
                )
                assert control.execute(default, [f"{name}.orders_entry"]).fetchall() == [
                    (f"nextval('{name}.old_id'::regclass)",)
                ]
        finally:
            control.execute("ALTER TABLE orders_entry ALTER id DROP DEFAULT")
            control.execute("ALTER TABLE orders_entry ALTER id ADD GENERATED BY DEFAULT AS IDENTITY")
            control.execute("DROP SEQUENCE old_id")


def test_a_table_that_was_not_copied_is_not_there(lab):
    alone, _ = lab
    with pytest.raises(psycopg.errors.UndefinedTable):
        alone.execute("INSERT INTO django_session VALUES ('k', 'v', now())")


def test_it_is_gone_after_an_error():
    with psycopg.connect(database_url(), autocommit=True) as control:
        name = schema.new_name()
        with pytest.raises(ZeroDivisionError), schema.schema(control, name):
            1 / 0  # noqa: B018
        assert control.execute("SELECT to_regnamespace(%s)", [name]).fetchall() == [(None,)]


def test_one_in_use_is_not_swept_and_one_that_a_crash_left_is():
    with psycopg.connect(database_url(), autocommit=True) as other:
        crashed = schema.new_name()
        with psycopg.connect(database_url(), autocommit=True) as runner:
            schema.create(runner, crashed)
            assert schema.sweep(other) == []
        with psycopg.connect(database_url(), autocommit=True) as runner, schema.schema(runner, schema.new_name()):
            wait_until(
                lambda: schema.sweep(other) == [crashed]
            )  # the server notices the end of a session a moment later
            assert schema.sweep(other) == []


def test_one_that_somebody_reads_is_left_for_later():
    with psycopg.connect(database_url(), autocommit=True, options="-c lock_timeout=50ms") as sweeper:
        name = schema.new_name()
        schema.create(sweeper, name)
        sweeper.execute(schema.NOT_IN_USE, {"name": name})
        with psycopg.connect(database_url()) as reader:
            reader.execute(f"SELECT FROM {name}.tasks_task")
            assert schema.sweep(sweeper) == []
        assert schema.sweep(sweeper) == [name]


def test_only_schemas_of_the_lab_are_dropped():
    with psycopg.connect(database_url(), autocommit=True) as control:
        for name in ("public", "lab_", "lab_1234", 'lab_0123456789ab"; DROP'):
            with pytest.raises(ValueError, match="lab run"):
                schema.drop(control, name)
        control.execute("CREATE SCHEMA lab_0123456789ab")  # somebody else's, by its lack of our mark
        try:
            assert schema.sweep(control) == []
        finally:
            control.execute("DROP SCHEMA lab_0123456789ab")


def test_a_role_that_may_not_is_told_the_grant(create_role):
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_database()")
        [database] = cursor.fetchone()
    with (
        psycopg.connect(database_url(), autocommit=True, options=f"-c role={create_role}") as control,
        pytest.raises(schema.LabRefused, match=f"GRANT CREATE ON DATABASE {database} TO"),
    ):
        schema.create(control, schema.new_name())


@pytest.fixture
def create_role():
    with psycopg.connect(database_url(), autocommit=True) as control:
        control.execute("CREATE ROLE lab_reader")
        control.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO lab_reader")
        yield "lab_reader"
        control.execute("DROP OWNED BY lab_reader; DROP ROLE lab_reader")
