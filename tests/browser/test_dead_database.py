"""The database is really gone under pages that people have open: they are told, keep what they saw, and go on later."""

import os
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from django.db import connection
from playwright.sync_api import Page

from tasks.models import Task
from tests import databases
from tests.browser.looks import assert_accessible, assert_fits, assert_looks_right, assert_nothing_inline
from tests.relay import Relay, relay
from tests.sessions import session
from tests.tasks import rows
from tests.waiting import wait_until
from tests.web import gunicorn

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
STALE = "/admin/ops/stale/"
GONE = "The database does not answer. It may be down, restarting or unreachable from here."
SESSIONS = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
    AND application_name LIKE 'rowlock:web%'
"""
SECONDS = 20  # a window asks every 2 s, and half as often each time that it fails


class Site(NamedTuple):
    """A web server of its own, and its way to the database, which can be closed."""

    base: str
    way: Relay


@pytest.fixture
def site(monkeypatch) -> Iterator[Site]:
    monkeypatch.setenv("PGOPTIONS", "-c lock_timeout=500ms")  # the settings of tests have no limits
    url = databases.named(os.environ["DATABASE_URL"], str(connection.settings_dict["NAME"]))
    before = sessions()
    with relay(url) as way, gunicorn(way.url) as (_web, port):
        yield Site(f"http://127.0.0.1:{port}", way)
    # One that is only about to end would keep the database from being removed after the last test.
    wait_until(lambda: sessions() <= before)


def sessions() -> set[int]:
    """Those of web servers, of which other tests have some too."""
    with connection.cursor() as cursor:
        cursor.execute(SESSIONS)
        return {pid for (pid,) in cursor.fetchall()}


@pytest.fixture
def task() -> Task:
    return rows.processing(rows.dead_worker())


def row(page: Page, task: Task):
    return page.locator(f"#stale-{task.pk}")


def test_a_dead_database_is_told_and_the_last_state_stays(visit, task, site):
    day = visit("Operators", theme="light", base=site.base)
    night = visit("Operators", theme="dark", size="narrow", base=site.base)
    windows = [visitor.open(STALE) for visitor in (day, night)]
    site.way.close()
    for page in windows:
        banner = page.locator(".live-banner")
        banner.wait_for(timeout=SECONDS * 1000)
        assert banner.inner_text().startswith(f"{GONE} What you see is the state of ")
        assert row(page, task).is_visible()
        assert_accessible(page)
        assert_fits(page)
    row(windows[0], task).locator("button[data-action]").click()
    assert_told(windows[0])
    assert_told(night.open("/admin/"))

    site.way.reopen()
    windows[1].get_by_role("link", name="Try again").click()
    windows[1].wait_for_selector("#overview")
    windows[0].get_by_role("link", name="Back to the page").click()
    Task.objects.filter(pk=task.pk).update(priority=7)
    wait_until(lambda: windows[0].wait_for_timeout(50) or "v3" in row(windows[0], task).inner_text())
    assert windows[0].locator(".live-banner").is_hidden()
    for visitor in (day, night):
        assert [text for text in visitor.complaints if "503" not in text] == []
        visitor.complaints.clear()


def test_a_page_opened_on_a_locked_table_shows_its_last_state_and_comes_back(visit, task, site):
    visitor = visit("Viewers", base=site.base)
    visitor.open(STALE)
    with session("migration") as other:
        other.execute("LOCK TABLE tasks_task IN ACCESS EXCLUSIVE MODE")
        page = visitor.open(STALE)
        notice = page.get_by_role("alert").inner_text()
        assert "This is the last known state" in notice
        assert f"pid {other.info.backend_pid} · migration" in notice
        assert row(page, task).is_visible()
        assert_looks_right(page)
        with page.expect_response(lambda answer: answer.status == 503):
            pass
        assert page.locator(".live-banner").is_hidden(), "the notice says it already"
    page.locator("#last-known").wait_for(state="detached", timeout=SECONDS * 1000)
    assert row(page, task).is_visible()
    assert [text for text in visitor.complaints if "503" not in text] == []
    visitor.complaints.clear()


def assert_told(page: Page) -> None:
    """The page that asks the database nothing: with the reason, and a way back."""
    assert page.get_by_role("alert").inner_text() == GONE
    assert_accessible(page)
    assert_fits(page)
    assert_nothing_inline(page)
