"""On a phone the first screen tells what is wrong, and no column of a list is out of sight."""

import pytest
from playwright.sync_api import Page, expect

from tests.browser.looks import assert_accessible, assert_fits
from tests.browser.test_demo import _directed  # noqa: F401  a fixture: the demo's ribbon and rows
from tests.orders import orders
from tests.sessions import session
from tests.tasks import rows

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
FAILED = "#attention-lines li.line"


def bottom(page: Page, selector: str) -> float:
    box = page.locator(selector).first.bounding_box()
    return box["y"] + box["height"]


def is_within_the_screen(page: Page, text: str) -> bool:
    box = page.get_by_text(text).first.bounding_box()
    return box["x"] >= 0 and box["x"] + box["width"] <= page.viewport_size["width"]


@pytest.mark.usefixtures("_directed")
@pytest.mark.parametrize("language", ["en-GB", "ru-RU"])
def test_what_is_wrong_and_what_to_press_are_on_the_first_screen(visit, language):
    page = visit("Operators", size="narrow", locale=language).open("/admin/")
    assert page.locator(".demo").is_visible()
    assert bottom(page, f"{FAILED} .next") <= page.viewport_size["height"]


@pytest.mark.parametrize("language", ["en-GB", "ru-RU"])
def test_the_menu_is_folded_and_opens_by_keyboard_over_the_page(visit, language):
    page = visit("Operators", size="narrow", locale=language).open("/admin/ops/audit/")
    menu = page.locator("nav.pages")
    assert not menu.is_visible()
    assert page.locator("#header").bounding_box()["height"] <= 48
    page.locator("button.fold").focus()
    page.keyboard.press("Enter")
    expect(menu).to_be_visible()
    assert_accessible(page)
    assert_fits(page)
    page.keyboard.press("Escape")
    expect(page.locator("button.fold")).to_be_focused()
    assert not menu.is_visible()
    page.keyboard.press("Enter")
    menu.locator("a").nth(1).click()
    page.wait_for_url("**/admin/ops/stale/")


def test_what_a_link_has_filtered_is_on_the_first_screen(visit):
    task = rows.failed()
    page = visit("Operators", size="narrow").open("/admin/tasks/task/?status=FAILED")
    assert page.locator("[data-search]").input_value() == "status:FAILED"
    assert bottom(page, f"#task-{task.pk} th") <= page.viewport_size["height"]
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.matches('[data-search]')")
    page.locator(f"#task-{task.pk} button[data-action=requeue]").click()
    page.locator("form.confirm").wait_for()
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "reason"


def test_who_holds_an_order_is_in_sight_in_the_list(visit):
    [order] = orders.shipped(1)
    with session("rowlock:demo:support") as locker:
        locker.execute("SELECT FROM orders_order WHERE id = %s FOR UPDATE", [order.pk])
        page = visit("Operators", size="narrow").open("/admin/orders/order/")
        assert is_within_the_screen(page, f"session {locker.info.backend_pid}")
    head = "element => getComputedStyle(element, '::before').content"
    assert page.locator("#result_list td.field-customer_email").evaluate(head) == '"Customer\'s e-mail: "'
