"""The audit keeps what was written: the database itself refuses to change, delete or empty it."""

import pytest
from django.db import ProgrammingError, connection, transaction

from tasks.models import Intervention
from tasks.support import audit
from tasks.support.audit import Change, Who

pytestmark = pytest.mark.django_db
# The tests' own database lets the table be emptied between tests; see tests/conftest.py.
AS_MIGRATED = "ALTER TABLE tasks_intervention ENABLE TRIGGER rowlock_never_emptied"


@pytest.fixture(autouse=True)
def entry():
    audit.record(connection, Who("anna", "page"), "cancel", [Change("task:1", 1, 2)], "why")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE tasks_intervention SET actor = 'otto'",
        "DELETE FROM tasks_intervention",
        "DELETE FROM tasks_intervention WHERE id > 0",
        "TRUNCATE tasks_intervention",
        "TRUNCATE tasks_intervention RESTART IDENTITY CASCADE",
    ],
)
def test_no_statement_changes_or_removes_what_was_written(statement):
    with connection.cursor() as cursor:
        cursor.execute(AS_MIGRATED)
        with pytest.raises(ProgrammingError, match="append-only"), transaction.atomic():
            cursor.execute(statement)
    assert Intervention.objects.get().actor == "anna"


def test_a_migrated_database_has_both_guards(database):
    names = database.rows(
        "SELECT tgname FROM pg_trigger WHERE tgrelid = 'tasks_intervention'::regclass AND tgenabled = 'O'"
    )
    assert {row.tgname for row in names} >= {"rowlock_append_only", "rowlock_never_emptied"}
