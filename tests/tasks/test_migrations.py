"""Check that our migrations can be taken back, and that they name no object twice."""

import re
from collections import Counter
from pathlib import Path

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

ROOT = Path(__file__).resolve().parents[2]
OURS = ("tasks", "orders", "dashboard")
MADE = re.compile(r"CREATE (?:OR REPLACE )?(?:FUNCTION|TRIGGER|SEQUENCE) (rowlock_.*)")
# Tests of old rows take constraints off and put them on again: not valid, and with other brackets.
OBJECTS = """
SELECT pg_get_functiondef(pg_proc.oid) || coalesce(proacl::text, '') FROM pg_proc
WHERE pronamespace = current_schema()::regnamespace AND proname LIKE 'rowlock%'
UNION ALL SELECT pg_get_triggerdef(pg_trigger.oid) FROM pg_trigger WHERE NOT tgisinternal
UNION ALL SELECT concat_ws(' ', conrelid::regclass, conname,
        translate(replace(pg_get_constraintdef(pg_constraint.oid), ' NOT VALID', ''), '()', ''))
    FROM pg_constraint WHERE connamespace = current_schema()::regnamespace
UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = current_schema()
UNION ALL SELECT concat_ws(' ', relname, relkind, reloptions) FROM pg_class
    WHERE relnamespace = current_schema()::regnamespace
UNION ALL SELECT concat_ws(' ', table_name, ordinal_position, column_name, data_type, is_nullable, column_default)
    FROM information_schema.columns WHERE table_schema = current_schema()
ORDER BY 1
"""
LEFT_BEHIND = """
SELECT proname FROM pg_proc WHERE pronamespace = current_schema()::regnamespace AND proname LIKE 'rowlock%'
UNION ALL SELECT relname FROM pg_class
WHERE relnamespace = current_schema()::regnamespace AND relname ~ '^(tasks|orders|dashboard|rowlock)_'
"""


def rows(statement: str) -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return [text for (text,) in cursor.fetchall()]


@pytest.mark.django_db
def test_migrations_lead_back_to_nothing_and_make_the_same_again():
    """In one transaction, which the test rolls back."""
    rows("SELECT rowlock_drop_archive('9999-12-01')")  # months of other tests
    before = rows(OBJECTS)
    MigrationExecutor(connection).migrate([(app, None) for app in OURS])
    assert rows(LEFT_BEHIND) == ["rowlock_raise_version"]  # tables of others may use it
    executor = MigrationExecutor(connection)
    executor.migrate(executor.loader.graph.leaf_nodes())
    assert rows(OBJECTS) == before


def test_an_object_is_made_in_one_place():
    """A function that a later migration replaces is read twice, and one of the two is not true any more."""
    made = Counter(
        name for app in OURS for path in (ROOT / app).rglob("*.py") for name in MADE.findall(path.read_text())
    )
    assert made
    assert [name for name, times in made.items() if times > 1] == []
