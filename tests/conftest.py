"""What every test of this project starts from."""

import pytest
from django.db import connection
from django.utils import translation

# Between tests that commit, Django empties every table; the audit refuses that, but for a database made for tests.
LET_TESTS_EMPTY_THE_AUDIT = "ALTER TABLE tasks_intervention DISABLE TRIGGER rowlock_never_emptied"


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup, django_db_blocker):
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute(LET_TESTS_EMPTY_THE_AUDIT)


@pytest.fixture(autouse=True)
def _no_language_is_left() -> None:
    """A request leaves the language of its browser to whatever its thread does next: here, another test."""
    translation.deactivate()
