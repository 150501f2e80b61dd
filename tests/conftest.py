"""Fixtures for every test of this project, and the order of its files."""

import gc
import os
import sys
from collections import Counter

import pytest
from django.db import connection
from django.test import TransactionTestCase
from django.utils import translation

from tasks.queue import presence
from tests.emptying import Tables
from tests.own_admin import combinations
from tests.waiting import wait_until

# Between tests that commit, Django empties every table; the audit's trigger refuses that, so it is off in tests.
LET_TESTS_EMPTY_THE_AUDIT = "ALTER TABLE tasks_intervention DISABLE TRIGGER rowlock_never_emptied"
OTHERS = "datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
OTHER_SESSIONS = f"SELECT count(*) FROM pg_stat_activity WHERE {OTHERS}"
END_OTHER_SESSIONS = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OTHERS}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say at the end which versions the wheel could not be tested with."""
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    if any(report.nodeid.startswith("tests/own_admin/") for report in reports):
        for line in combinations.left_out():
            terminalreporter.write_line(line)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the files for several processes, which take one after the other (`--no-loadscope-reorder`).

    Those with a browser come first, together: a process starts one anew after each file without. Of the others, files
    with few tests, which mostly wait for processes, alternate with files with many, which keep a core busy.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        browser = config.rootpath / "tests" / "browser"
        sizes = Counter(item.path for item in items)
        smallest_first = sorted(sizes, key=lambda path: sizes[path])
        places = {
            path: (0, at) if browser in path.parents else (1, min(at, len(sizes) - at))
            for at, path in enumerate(smallest_first)
        }
        items.sort(key=lambda item: places[item.path])


def pytest_collection_finish() -> None:
    """Spare the collector all that is loaded by now: it is no garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup, django_db_blocker):
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute(LET_TESTS_EMPTY_THE_AUDIT)
        tables = Tables()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", lambda _: tables.empty())
        yield
    # The server notices a killed process only after a moment, and the garbage collector closes sessions of ended
    # threads. Any session left would keep the database from being removed.
    with django_db_blocker.unblock():
        with connection.cursor() as cursor:
            cursor.execute(END_OTHER_SESSIONS)
        wait_until(nobody_else_is_there)
        # With Playwright's event loop a thread has a second connection, and Django closes the first one.
        connection.close()


def nobody_else_is_there() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(OTHER_SESSIONS)
        return bool(cursor.fetchone() == (0,))


@pytest.fixture(autouse=True)
def _nothing_is_left() -> None:
    """A request leaves its browser's language active in its thread, and the state of its page, here for the next test.

    A test without the pages has none of the latter. A question that was slow is not asked again soon.
    """
    translation.deactivate()
    presence.shown_ids = presence.KnownIds()
    if pages := sys.modules.get("dashboard.live.last_known"):
        pages.forget()
