"""Cron and named locks in a real browser: who sits on an overdue report, and freeing the lock of the dead."""

from datetime import timedelta

import pytest
from django.utils import timezone

from tasks.locking.named import backends
from tasks.models import ExpectedCommand, Intervention
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
        assert "Overdue was due 29 h ago" in row.inner_text()
        assert f"pid {holder.pid}" in row.inner_text()
        assert shell("true").status == 75
        row.locator(".outcome-skipped").wait_for()
        holder.kill()
        row.get_by_text("Holder gone").wait_for()

    row.locator("button[data-action=release-lock]").click()
    assert "Its session has ended" in page.locator("dl.facts").inner_text()
    page.locator("input[name=reason]").fill("killed by hand")
    page.locator("button[data-action=release-lock]").click()
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
            page.locator("#schedule-rows .life-alive").wait_for()
        assert page.locator("#schedule-rows button").count() == 0, "a viewer sees no buttons"
