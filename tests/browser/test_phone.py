"""On a phone the first screen tells what is wrong, and no column of a list is out of sight."""

import pytest
from playwright.sync_api import Page

from tests.browser.test_demo import _directed  # noqa: F401  a fixture: the demo's ribbon and rows
from tests.orders import orders
from tests.sessions import session
from tests.tasks import rows

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
FAILED = "#attention-lines li.red"


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


def test_the_page_in_hand_is_in_sight_among_the_pages(visit):
    page = visit("Operators", size="narrow", locale="ru-RU").open("/admin/ops/audit/")
    assert is_within_the_screen(page, "Журнал")
    page.locator("nav.pages a").first.focus()
    assert is_within_the_screen(page, "Обзор")


def test_what_a_link_has_filtered_is_on_the_first_screen(visit):
    task = rows.failed()
    page = visit("Operators", size="narrow").open("/admin/tasks/task/?status=FAILED")
    assert "status=FAILED" in page.locator("details.filter > summary").inner_text()
    assert bottom(page, f"#task-{task.pk} th") <= page.viewport_size["height"]
    page.keyboard.press("/")
    assert page.get_by_label("FAILED").is_visible()
    page.locator(f"#task-{task.pk} button").click()
    page.locator("form.confirm").wait_for()
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "reason"


def test_who_holds_an_order_is_in_sight_in_the_list(visit):
    [order] = orders.shipped(1)
    with session("rowlock:demo:support") as locker:
        locker.execute("SELECT FROM orders_order WHERE id = %s FOR UPDATE", [order.pk])
        page = visit("Operators", size="narrow").open("/admin/orders/order/")
        assert is_within_the_screen(page, f"Held by pid {locker.info.backend_pid}")
    head = "element => getComputedStyle(element, '::before').content"
    assert page.locator("#result_list td.field-customer_email").evaluate(head) == '"Customer\'s e-mail: "'
