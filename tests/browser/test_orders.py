"""The orders' pages in a browser: ship by a button and watch it, resolve what is unknown."""

import pytest
from django.utils import timezone

from orders.models import Order
from tasks import testing
from tests.browser.looks import assert_accessible, assert_looks_right, look
from tests.orders import orders
from tests.people import person
from tests.smtp import smtp  # noqa: F401  a fixture

pytestmark = pytest.mark.browser
LIST = "/admin/orders/order/"


@pytest.fixture
def unknown(db) -> Order:
    orders.mailed(3), orders.placed(2), orders.shipped(4)
    reply = "SMTPServerDisconnected: Connection unexpectedly closed: timed out " + "x" * 200
    [order] = orders.shipped(
        email_state="unknown",
        email_owner="web1:7:abcdef",
        email_since=timezone.now(),
        email_reply=reply,
        customer_email=f"{'long' * 12}@example.test",
    )
    return order


def test_the_pages_are_accessible_and_fit(visit, unknown):
    visitor = visit("Operators")
    page = visitor.open(f"{LIST}{unknown.pk}/change/")
    # The stock form's style sheets import others, which axe would copy into the page, against its policy.
    assert_looks_right(page, preload=False)
    page = visitor.open(LIST)
    assert_looks_right(page)
    page.locator("button[data-action=ship-emails]").click()
    page.wait_for_selector("#pattern-progress")
    assert_looks_right(page)


def test_the_form_of_an_order_is_accessible(visit, unknown):
    """Each of the two inputs of a moment has a name."""
    visitor = visit()
    visitor.log_in(person(is_superuser=True))
    page = visitor.open(f"{LIST}{unknown.pk}/change/")
    for theme in ("light", "dark"):
        look(page, theme, "wide")
        assert_accessible(page, preload=False)
    for name in ("Placed at: date", "Placed at: time", "Shipped at: date", "Shipped at: time"):
        assert page.get_by_role("textbox", name=name, exact=True).count() == 1


def test_shipping_is_watched_until_it_is_done(visit, unknown, smtp):  # noqa: F811
    page = visit("Operators").open(LIST)
    page.get_by_label("mark_first").check()
    page.locator("button[data-action=ship-emails]").click()
    page.wait_for_selector("#pattern-progress")
    assert page.locator("#pattern-progress").inner_text().split("Left to do")[1].split()[0] == "4"
    testing.run_due()
    page.wait_for_selector("#pattern-progress:has-text('COMPLETED')")
    assert page.locator("dt:text-is('sent') + dd").inner_text() == "4"
    assert page.locator("[data-live]").count() == 0
    assert len(smtp.accepted) == 4


def test_unknown_ones_are_chosen_in_the_list_and_resolved(visit, unknown):
    page = visit("Operators").open(LIST)
    page.locator("#action-toggle").check()
    page.get_by_label("Action:").select_option("resolve_emails")
    page.get_by_role("button", name="Run the selected action").or_(page.get_by_role("button", name="Go")).first.click()
    page.wait_for_selector("form.confirm input[name=seen]")
    assert_accessible(page)
    page.get_by_label("Reason").fill("found in the log")
    page.get_by_role("button", name="Take as sent").click()
    page.wait_for_selector(".messagelist")
    assert "1 e-mail resolved." in page.locator(".messagelist").inner_text()
    assert Order.objects.get(pk=unknown.pk).email_state == "sent"
