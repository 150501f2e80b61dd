"""Pytest plugin: the fixture `eager_tasks`, and a check after each test that it leaves no worker and no lock behind.

Installed with the wheel, and turned off by `-p no:rowlock`. Nothing of Django is imported before its settings are
ready, and nothing at all for a project without Rowlock or without pytest-django.
"""

import sys
from collections.abc import Iterator
from typing import Any

import pytest

FIXTURES = "rowlock-fixtures"
DATABASE = {"db", "transactional_db", "django_db_reset_sequences", "django_db_serialized_rollback", "live_server"}


def pytest_sessionstart(session: pytest.Session) -> None:
    """Offer the fixtures if this project has Rowlock; its settings are ready by now."""
    plugins = session.config.pluginmanager
    if plugins.hasplugin("django") and not plugins.hasplugin(FIXTURES) and has_rowlock():
        plugins.register(Fixtures(), FIXTURES)


def has_rowlock() -> bool:
    """True if the app `tasks` is installed, and is ours."""
    registry = sys.modules.get("django.apps")
    if registry is None or not registry.apps.ready or not registry.apps.is_installed("tasks"):
        return False
    from django.db import connection

    return "double_checked" in getattr(sys.modules["tasks"], "__all__", ()) and connection.vendor == "postgresql"


class Fixtures:
    """The fixtures of a project with Rowlock."""

    @pytest.fixture
    def eager_tasks(self, db: None) -> Iterator[list[Any]]:
        """Each task runs when it is enqueued; the list of results grows."""
        from tasks.testing import eager

        with eager() as results:
            yield results

    @pytest.fixture(autouse=True)
    def _rowlock_nothing_left(self, request: pytest.FixtureRequest) -> Iterator[None]:
        """Set up behind the database and before the test's own fixtures, whose end it waits for."""
        from django.test import SimpleTestCase

        case = request.instance
        if isinstance(case, SimpleTestCase):
            if "default" in case.databases:
                from tasks.testing import leftovers

                leftovers.watch_case(case)
            yield
        elif uses_database(request):
            request.getfixturevalue("db")
            yield from _watch()
        else:
            yield


def uses_database(request: pytest.FixtureRequest) -> bool:
    """True for a test function with the default database."""
    marker = request.node.get_closest_marker("django_db")
    if marker is None:
        return not DATABASE.isdisjoint(request.fixturenames)
    databases = marker.kwargs.get("databases")
    return databases is None or "default" in databases or databases == "__all__"


def _watch() -> Iterator[None]:
    from tasks.testing.leftovers import LeftBehind, Watch

    watch = Watch()
    yield
    try:
        watch.check()
    except LeftBehind as left:
        pytest.fail(str(left), pytrace=False)
