"""The audit page in a real browser: legible everywhere, filtered by form and by link, and following what happens."""

import pytest
from django.db import connection

from tasks.support import audit
from tasks.support.audit import Change, Who
from tests.browser.looks import assert_looks_right

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
AUDIT = "/admin/ops/audit/"


def record(actor: str, action: str, target: str, reason: str = "") -> None:
    audit.record(connection, Who(actor, "page"), action, [Change(target, 1, 2)], reason)


@pytest.fixture
def entries(live_server) -> None:
    record("anna", "cancel", "task:4711", "sent twice")
    record("otto" * 20, "configure recovery=ask " + "x" * 80, "queue:" + "q" * 100, "why " * 100)
    record("otto", "stop", "worker:w7f")


def test_the_page_is_accessible_and_fits(visit, entries):
    visitor = visit("Viewers")
    for query in ("", "?actor=nobody", "?since=nonsense"):
        assert_looks_right(visitor.open(AUDIT + query))
    visitor.complaints.clear()  # the browser's word on the 400 of the last


def test_the_form_and_the_links_narrow_it(visit, entries):
    page = visit("Viewers").open(AUDIT)
    rows = page.locator("#audit-rows tbody tr")
    assert rows.count() == 3
    page.get_by_label("To what").fill("#4711")
    page.get_by_role("button", name="Search", exact=True).click()
    page.wait_for_url("**?**target=**")
    assert rows.count() == 1
    assert "sent twice" in rows.inner_text()
    page.get_by_role("link", name="Show everything").click()
    page.get_by_role("link", name="otto", exact=True).click()
    assert page.get_by_label("Who").input_value() == "otto"
    assert rows.count() == 1


def test_it_follows_what_happens(visit, entries):
    page = visit("Viewers").open(AUDIT)
    record("anna", "pause", "queue:mail")
    page.locator("#audit-rows tr", has_text="queue:mail").wait_for()
    assert "pause" in page.locator("#audit-rows tbody tr").first.inner_text()


def test_a_row_is_one_line_and_enqueues_unfold(visit, entries):
    for number in range(3):
        record("otto", "enqueue", f"task:{number}")
    page = visit("Viewers").open(AUDIT)
    assert page.locator("#audit-rows tbody tr").count() == 3
    heights = page.locator("#audit-rows tbody tr").evaluate_all("rows => rows.map(row => row.offsetHeight)")
    assert max(heights) <= 38
    page.get_by_role("link", name="3 enqueues").click()
    page.get_by_role("link", name="Fold the enqueues").wait_for()
    assert page.locator("#audit-rows tbody tr").count() == 6


def test_a_time_is_chosen_by_keyboard(visit, entries):
    page = visit("Viewers").open(AUDIT)
    page.get_by_role("link", name="1 h", exact=True).press("Enter")
    page.wait_for_url("**?since=1h")
    assert page.get_by_label("from").input_value() == "1h"
    page.get_by_label("to (UTC)").fill("30m")
    page.get_by_label("to (UTC)").press("Enter")
    page.get_by_text("No intervention matches this filter.").wait_for()


def test_the_rows_can_be_taken_along(visit, entries):
    page = visit("Viewers").open(AUDIT)
    page.locator("summary[aria-label='More about the audit']").click()
    with page.expect_download() as download:
        page.get_by_role("menuitem", name="Download as CSV").click()
    assert "sent twice" in download.value.path().read_text()
