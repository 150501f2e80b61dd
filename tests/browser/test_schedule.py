"""Schedules in a real browser: who holds the lock of an overdue report, and releasing the lock of the dead."""

from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from tasks.locking.named import backends
from tasks.models import ExpectedCommand, Intervention
from tests.browser.looks import assert_looks_right
from tests.commands import database_url
from tests.jobs import shell
from tests.lockers import locker
from tests.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
NAME = "job"


@pytest.mark.parametrize("size", ["wide", "narrow"])
def test_an_overdue_report_its_dead_holder_and_the_release(visit, size):
    ExpectedCommand.objects.create(name=NAME, every=timedelta(hours=1), since=timezone.now() - timedelta(hours=30))
    with locker(database_url(), NAME, ttl=600) as holder:
        fence = holder.hear()["fence"]
        page = visit("Lock administrators", size=size).open("/admin/ops/schedule/")
        row = page.locator("#schedule-rows tbody tr")
        assert "Overdue 29 h ago" in row.inner_text()
        assert f"pid {holder.pid}" in row.inner_text()
        assert_looks_right(page)
        assert shell("true").status == 75
        row.locator("td .outcome-skipped").first.wait_for()
        holder.kill()
        row.get_by_text("Holder gone").wait_for()

    page.locator("#lock-rows button[data-action=release-lock]").click()
    question = page.get_by_role("dialog", name="Release this lock?")
    assert "Its session has ended" in question.inner_text()
    page.keyboard.type("killed by hand")
    page.keyboard.press("Enter")
    page.get_by_text(f"The lock {NAME} is free.").wait_for()
    assert Intervention.objects.get().action == f"release fence={fence}"
    assert backends.holder(NAME) is None


def test_the_page_follows_what_happens(visit):
    with locker(database_url(), NAME, ttl=600) as holder:
        holder.hear()
        page = visit("Viewers").open("/admin/ops/schedule/")
        with locker(database_url(), NAME, ttl=600, wait=60) as waiter:
            page.get_by_text(f"pid {waiter.pid}").wait_for()
            holder.ask("release")
            wait_until(lambda: (found := backends.holder(NAME)) and found.pid == waiter.pid)
            page.locator("#lock-rows .life-alive").wait_for()
        assert page.locator("button[data-action]:enabled").count() == 0, "a viewer may press nothing"


def test_a_retired_command_is_monitored_no_more_by_keyboard_alone(visit):
    ExpectedCommand.objects.create(name=NAME, every=timedelta(hours=1), since=timezone.now())
    page = visit("Operators").open("/admin/ops/schedule/")
    page.locator(f"summary[aria-label='More for {NAME}']").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("menuitem", name="Stop monitoring…")).to_be_focused()
    page.keyboard.press("Enter")
    page.get_by_role("dialog", name="Stop monitoring this command?").wait_for()
    page.keyboard.type("retired")
    page.keyboard.press("Enter")
    page.get_by_text(f"Monitoring of {NAME} has stopped.").wait_for()
    assert not ExpectedCommand.objects.exists()
