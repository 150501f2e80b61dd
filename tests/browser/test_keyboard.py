"""Keys for what the mouse does: listed, harmless while somebody types, heard by a screen reader, and off on request."""

import pytest
from playwright.sync_api import Page

from tests.browser.looks import assert_looks_right
from tests.tasks import rows

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
LIST, STALE = "/admin/tasks/task/", "/admin/ops/stale/"
FOCUSED = "document.activeElement.textContent.trim()"


@pytest.fixture
def tasks(live_server):
    worker = rows.dead_worker()
    return [rows.processing(worker) for _ in range(3)]


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def is_help_open(page: Page) -> bool:
    return page.locator("#shortcuts").evaluate("dialog => dialog.open")


def test_a_question_mark_lists_the_keys(visit, tasks):
    page = visit("Operators").open(STALE)
    press(page, "?")
    dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
    assert is_help_open(page)
    for words in ("to the next, the previous row", "tick the row", "Database locks"):
        assert words in dialog.inner_text()
    assert_looks_right(page)
    press(page, "Escape")
    assert not is_help_open(page)


def test_a_button_lists_them_too_and_takes_the_focus_back(visit, tasks):
    page = visit("Viewers").open(STALE)
    button = page.get_by_role("button", name="Keyboard shortcuts")
    button.click()
    assert is_help_open(page)
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    assert not is_help_open(page)
    assert button.evaluate("button => button === document.activeElement")


def test_j_and_k_move_through_the_rows_and_x_ticks(visit, tasks):
    page = visit("Operators").open(STALE)
    press(page, "j", "j", "j", "x")
    assert page.evaluate(FOCUSED) == f"#{tasks[1].pk}"
    assert page.get_by_label(f"Tick #{tasks[1].pk}").is_checked()
    press(page, "k", "x")
    assert page.get_by_label(f"Tick #{tasks[0].pk}").is_checked()
    assert page.locator("[data-ticked]").inner_text().endswith("2")
    press(page, "j", "j", "j", "j", "j")
    assert page.evaluate(FOCUSED) == f"#{tasks[2].pk}"
    press(page, "Enter")
    page.wait_for_url(f"**{LIST}{tasks[2].pk}/")


def test_the_row_in_focus_is_not_hidden_behind_a_bar(visit, live_server):
    rows.many(30)
    page = visit("Operators").open(LIST)
    hidden = """() => {
        const box = document.activeElement.getBoundingClientRect();
        return box.bottom > document.querySelector(".bar").getBoundingClientRect().top
            || box.top < document.querySelector(".live").getBoundingClientRect().bottom;
    }"""
    press(page, "j", "x")
    for key in "j" * 20 + "k" * 12:
        press(page, key)
        assert not page.evaluate(hidden)


def test_a_slash_leads_to_the_filter_and_nothing_is_a_command_there(visit, tasks):
    page = visit("Operators").open(LIST)
    press(page, "/")
    field = page.evaluate_handle("document.activeElement")
    assert field.evaluate("field => field.matches('form[role=search] input')")
    page.keyboard.type("x/j?gt")
    assert field.evaluate("field => field.value") == "x/j?gt"
    assert not is_help_open(page)
    assert page.locator("input[name=seen]:checked").count() == 0
    assert page.url.endswith(LIST)


@pytest.mark.parametrize(("key", "address"), [("t", LIST), ("w", "/admin/ops/workers/"), ("o", "/admin/")])
def test_g_and_a_letter_open_a_page(visit, tasks, key, address):
    page = visit("Viewers").open(STALE)
    press(page, "g", key)
    page.wait_for_url(f"**{address}")


def test_a_letter_alone_or_with_control_opens_nothing(visit, tasks):
    page = visit("Viewers").open(STALE)
    press(page, "t", "w", "Control+g", "t", "Alt+j")
    assert page.url.endswith(STALE)
    assert page.evaluate("document.activeElement === document.body")


def test_every_page_has_a_letter_of_its_own(visit, live_server):
    page = visit("Operators").open("/admin/")
    keys = page.locator("nav.pages a").evaluate_all("links => links.map(link => link.dataset.key)")
    named = [key for key in keys if key]
    assert len(named) == len(set(named)) >= 10
    assert not set(named) & set("?/")


def test_p_pauses_and_resumes(visit, tasks):
    page = visit("Viewers").open(STALE)
    pause = page.locator("[data-live-pause]")
    press(page, "p")
    assert pause.get_attribute("aria-pressed") == "true"
    press(page, "p")
    assert pause.get_attribute("aria-pressed") == "false"


def test_the_keys_can_be_switched_off_and_stay_off(visit, tasks):
    visitor = visit("Operators")
    page = visitor.open(STALE)
    press(page, "?")
    page.get_by_label("Shortcuts are on in this browser").uncheck()
    press(page, "Escape")
    page = visitor.open(STALE)
    press(page, "?", "j", "p")
    assert not is_help_open(page)
    assert page.evaluate("document.activeElement === document.body")
    page.get_by_role("button", name="Keyboard shortcuts").click()
    assert is_help_open(page)


@pytest.mark.parametrize("address", [STALE, LIST, "/admin/ops/workers/", "/admin/ops/audit/", "/admin/"])
def test_the_first_tab_leads_past_the_navigation(visit, tasks, address):
    page = visit("Viewers").open(address)
    press(page, "Tab")
    assert page.evaluate(FOCUSED) == "Skip to main content"
    press(page, "Enter")
    assert page.evaluate("document.activeElement.id") == "content-start"
