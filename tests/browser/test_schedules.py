"""Schedules in a real browser: paused, run now, and edited with the next times shown as they are typed."""

import pytest
from playwright.sync_api import expect

from tasks.models import Intervention, Schedule, Task
from tests.browser.looks import assert_looks_right
from tests.dashboard.schedules.made import PAGE, made

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def test_a_schedule_is_paused_run_now_and_edited(visit):
    made(last_outcome="")
    page = visit("Operators").open(PAGE)
    row = page.locator("#schedules tbody tr")
    expect(row).to_contain_text("every day at 03:00")
    assert_looks_right(page)

    row.get_by_role("button", name="Pause", exact=True).click()
    page.get_by_text("Schedule nightly is paused.").wait_for()
    expect(row.get_by_role("button", name="Resume", exact=True)).to_be_visible()

    row.get_by_role("button", name="Run now…").click()
    page.get_by_role("dialog", name="Run now: nightly").wait_for()
    page.keyboard.type("wanted now")
    page.keyboard.press("Enter")
    page.get_by_text("Schedule nightly was enqueued as").wait_for()
    assert (Task.objects.count(), Intervention.objects.last().reason) == (1, "wanted now")

    row.get_by_role("link", name="Edit", exact=True).click()
    cron = page.get_by_label("Cron expression: minute, hour")
    page.get_by_label("Time zone of the cron expression").fill("Europe/Berlin")
    cron.fill("30 2 * * *")
    expect(page.locator("#times")).to_contain_text("02:30 occurs twice on this day: it runs at the first")
    expect(page.locator("#times ol li")).to_have_count(5)
    assert_looks_right(page)
    cron.fill("30 2 * *")
    expect(page.locator("#times")).to_contain_text("five fields")
    cron.fill("30 2 * * *")
    page.get_by_role("button", name="Save").click()
    page.get_by_text("The schedule nightly is saved.").wait_for()
    expect(row).to_contain_text("every day at 02:30")
    assert Schedule.objects.get().timezone == "Europe/Berlin"
