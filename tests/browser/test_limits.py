"""Limits in a real browser: who holds the slots of a key, changing its limit, pausing it, and the way there."""

from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from tasks.models import Intervention, Limit
from tasks.operations import set_limit
from tasks.support.audit import Who
from tests.browser.looks import assert_looks_right
from tests.tasks import rows

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
PAGE = "/admin/ops/limits/"


def scene() -> tuple[int, int]:
    """A key whose two slots are taken, and one that is paused; the ids of the first holder and of one that waits."""
    at = timezone.now() - timedelta(minutes=3)
    rated = {"rate_key": "bank", "rate": 100, "period_seconds": 60, "concurrency_key": "bank", "concurrency_limit": 2}
    first, _second = (rows.processing("w7f", slot=slot, started_at=at, **rated) for slot in (1, 2))
    waiting = rows.ready(**rated)
    set_limit("k" * 255, Who("a" * 150, "page"), max_running=5, rate="7/h", paused=True)
    return first.pk, waiting.pk


def test_from_a_task_that_waits_to_its_limit_which_is_raised_and_paused_by_keyboard(visit):
    first, waiting = scene()
    visitor = visit("Operators")
    page = visitor.open(f"/admin/tasks/task/{waiting}/")
    page.locator("#facts").get_by_role("link", name="bank").click()
    row = page.locator("#limit-rows tbody tr")
    expect(row).to_have_count(1)
    expect(row.get_by_role("link", name=f"#{first}")).to_be_visible()
    row.locator("summary", has_text="and 1 more").click()
    row.get_by_role("button", name="Change…").focus()
    page.keyboard.press("Enter")
    question = page.get_by_role("dialog", name="Limit of the key bank")
    expect(question.get_by_label("At most at once")).to_be_focused()
    page.keyboard.type("0")
    page.keyboard.press("Enter")
    expect(question.get_by_text("is not a whole number from 1 to 10000")).to_be_visible()
    visitor.complaints.clear()  # the console tells of the refusal, which is an answer of 400
    assert_looks_right(page)
    question.get_by_label("At most at once").fill("9")
    page.keyboard.press("Enter")
    page.get_by_text("The limit of bank was changed.").wait_for()
    expect(row.locator("td").first).to_have_text("9")
    row.get_by_role("button", name="Pause").click()
    page.get_by_text("The key bank is paused.").wait_for()
    assert Limit.objects.filter(key="bank", max_running=9, paused=True).exists()
    assert Intervention.objects.filter(target="limit:bank").count() == 2


def test_the_page_looks_right_and_follows_what_happens(visit):
    scene()
    page = visit("Viewers").open(PAGE)
    page.locator("#limit-rows summary", has_text="and 1 more").click()
    assert_looks_right(page)
    assert page.locator("#limit-rows button[type=submit]:enabled").count() == 0, "a viewer may press nothing"
    rows.ready(concurrency_key="new")
    page.locator("#limit-rows").get_by_role("link", name="new", exact=True).wait_for()


def test_the_palette_and_two_keys_lead_there(visit):
    page = visit("Viewers").open("/admin/")
    page.keyboard.press("Control+k")
    page.keyboard.type("limits")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{PAGE}")
    page.goto(page.url.replace("/ops/limits/", "/"))
    page.keyboard.press("g")
    page.keyboard.press("i")
    page.wait_for_url(f"**{PAGE}")
