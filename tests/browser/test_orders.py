"""The orders' pages in a browser: ship by a button and watch it, resolve what is unknown."""

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from playwright.sync_api import expect

from orders import accounts
from orders.models import Account, Order
from tasks import testing
from tests.browser.looks import assert_accessible, assert_looks_right, look
from tests.orders import orders
from tests.people import person
from tests.sessions import session
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
    assert_looks_right(page)
    page = visitor.open(LIST)
    assert_looks_right(page)
    page.locator("#action-toggle").check()
    assert_looks_right(page)
    page = visitor.open(f"{LIST}patterns/shipped_emails/")
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
        assert_accessible(page)
    for name in ("Placed at: date", "Placed at: time", "Shipped at: date", "Shipped at: time"):
        assert page.get_by_role("textbox", name=name, exact=True).count() == 1


def test_the_list_fills_the_screen_with_rows(visit, db):
    orders.shipped(30)
    page = visit("Operators").open(LIST)
    boxes = [row.bounding_box() for row in page.locator("#result_list tbody tr").all()]
    assert {round(box["height"]) for box in boxes} <= {36, 37}
    assert sum(box["y"] + box["height"] <= 900 for box in boxes) >= 18


@pytest.mark.django_db(transaction=True)
def test_the_form_follows_the_lock_of_its_row(visit):
    [order] = orders.placed()
    visitor = visit()
    visitor.log_in(person(is_superuser=True))
    page = visitor.open(f"{LIST}{order.pk}/change/")
    line = page.locator("#row-lock")
    expect(line).to_have_text("No session locks this row.")
    page.get_by_label("Customer's e-mail").fill("ours@example.test")
    with session("psql of ann") as holder:
        holder.execute("SELECT FROM orders_order WHERE id = %s FOR UPDATE", [order.pk])
        expect(line).to_contain_text(f"Locked by session {holder.info.backend_pid} (psql of ann)")
        line.get_by_role("link").click()
        assert page.url.endswith(f"/admin/ops/locks/#node-{holder.info.backend_pid}")
        page.go_back()
        expect(line).to_contain_text("Locked by")
    expect(line).to_have_text("No session locks this row.")
    assert visitor.complaints == []


def test_money_is_moved_by_keyboard_and_the_answer_stays(visit, db):
    rich, poor = (Account.objects.create(owner=User.objects.create_user(name)) for name in ("rich", "poor"))
    accounts.deposit(rich.pk, 100)
    visitor = visit("Account managers")
    page = visitor.open(f"/admin/orders/account/{rich.pk}/change/")
    assert_looks_right(page)
    page.get_by_label("To account").fill(str(poor.pk))
    page.keyboard.press("Tab")
    page.keyboard.type("12.50")
    page.keyboard.press("Enter")
    answer = page.locator(".messagelist")
    expect(answer).to_contain_text("Done: the balance is 87.50")
    answer.get_by_role("link", name=f"Account {poor.pk}").click()
    expect(page.locator("dl.facts")).to_contain_text("12.50")


def test_shipping_is_watched_until_it_is_done(visit, unknown, smtp):  # noqa: F811
    page = visit("Operators").open(LIST)
    page.locator("button[data-action=ship-emails]").click()
    page.locator("dialog").get_by_label("mark_first").check()
    page.locator("dialog button[data-action=ship-emails]").click()
    page.wait_for_selector("#pattern-progress")
    assert page.locator("#pattern-progress").inner_text().split("Left to do")[1].split()[0] == "4"
    testing.run_due()
    page.wait_for_selector("#pattern-progress:has-text('COMPLETED')")
    assert page.locator("dt:text-is('sent') + dd").inner_text() == "4"
    assert page.locator("[data-live]").count() == 0
    assert len(smtp.accepted) == 4


def test_unknown_ones_are_chosen_in_the_list_and_resolved(visit, unknown):
    page = visit("Operators").open(LIST)
    resolve_all = page.get_by_role("button", name="Resolve e-mails that may have been sent…")
    assert not resolve_all.is_visible(), "nothing is ticked"
    page.locator("#action-toggle").check()
    resolve_all.click()
    page.wait_for_selector("dialog form.confirm input[name=seen]")
    assert_accessible(page)
    page.get_by_label("Reason").fill("found in the log")
    page.get_by_role("button", name="Take as sent").click()
    page.wait_for_selector(".messagelist")
    assert "1 e-mail resolved." in page.locator(".messagelist").inner_text()
    assert Order.objects.get(pk=unknown.pk).email_state == "sent"
