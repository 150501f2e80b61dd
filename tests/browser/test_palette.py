"""The palette goes anywhere and presses the page's buttons; the page is copied as Markdown."""

import pytest
from playwright.sync_api import expect

from tests.browser.looks import assert_looks_right
from tests.tasks import rows
from tests.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
FOUND = "#palette [role=option]"


def test_a_task_id_leads_to_the_task(visit, live_server):
    task = rows.failed()
    page = visit("Operators").open("/admin/ops/workers/")
    page.keyboard.press("Control+k")
    page.keyboard.type(str(task.pk))
    expect(page.locator(FOUND).first).to_contain_text(f"Task #{task.pk}")
    assert_looks_right(page)
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/admin/tasks/task/{task.pk}/")


def test_arrows_choose_among_the_pages_of_the_menu(visit, live_server):
    page = visit("Viewers").open("/admin/")
    page.get_by_role("button", name="Go to anything").click()
    page.keyboard.type("or")
    names = page.locator(FOUND).all_inner_texts()
    assert {"Workers", "Orders"} <= set(names)
    for _ in range(names.index("Workers")):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**/admin/ops/workers/")


def test_escape_closes_it_and_nothing_found_is_said(visit, live_server):
    page = visit("Viewers").open("/admin/")
    page.keyboard.press("Control+k")
    page.keyboard.type("no such thing")
    expect(page.get_by_text("Nothing found.")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#palette")).to_be_hidden()


def test_a_page_is_copied_as_markdown(visit, live_server):
    task = rows.failed()
    page = visit("Viewers", permissions=["clipboard-read", "clipboard-write"]).open("/admin/tasks/task/")
    page.keyboard.press("Control+k")
    page.keyboard.type("markdown")
    page.keyboard.press("Enter")
    wait_until(lambda: page.evaluate("navigator.clipboard.readText()").startswith("# Tasks"))
    copied = page.evaluate("navigator.clipboard.readText()")
    assert page.url in copied
    assert f"#{task.pk}" in copied
    assert "| --- |" in copied
