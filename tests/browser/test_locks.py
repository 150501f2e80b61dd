"""The live lock tree in a real browser: it shows, follows, keeps what a person opened, and ends a blocker."""

import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone
from playwright.sync_api import expect

from dashboard.locks import activity
from dashboard.locks.history import Sampler
from dashboard.models import LockWait
from orders.models import Account
from tasks.models import Intervention
from tests.browser.looks import assert_accessible, assert_fits, assert_looks_right
from tests.dashboard.scenes import queue_for_one_row, staged
from tests.sessions import session, wait_until_blocked
from tests.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
LOCK = "SELECT 1 FROM orders_account WHERE id = %s FOR UPDATE"


@pytest.fixture
def chain() -> Iterator[tuple[int, int]]:
    """A session that holds an account's row and one that waits for it: their pids."""
    account = Account.objects.create(owner=User.objects.create_user("owner"))
    with session("psql <script>alert(1)</script>") as root, session("rowlock:worker:7f3a") as blocked:
        root.execute(LOCK, [account.pk])
        blocked.execute("SELECT 1")
        thread = threading.Thread(target=wait_in_vain, args=(blocked, account.pk))
        thread.start()
        wait_until_blocked(blocked.info.backend_pid)
        yield root.info.backend_pid, blocked.info.backend_pid
        blocked.cancel_safe()
        thread.join(10)


def wait_in_vain(conn: psycopg.Connection, account_id: int) -> None:
    try:
        conn.execute(LOCK, [account_id])
    except psycopg.errors.QueryCanceled:
        conn.rollback()


def test_the_blocker_is_shown_with_its_victim_and_can_be_ended(visit, chain: tuple[int, int]) -> None:
    root, blocked = chain
    visitor = visit("Lock administrators")
    page = visitor.open("/admin/ops/locks/")
    tree = page.locator("#lock-tree")
    assert "blocks 1" in tree.locator(f"#node-{root} > .node").inner_text()
    assert "worker 7f3a" in tree.locator(f"#node-{root} #node-{blocked}").inner_text()

    tree.locator(f"#node-{root} > .node button[data-action=terminate-backend]").click()
    dialog = page.locator("dialog[open]")
    expect(dialog.locator("dl.facts")).to_contain_text(f"{blocked} worker 7f3a")
    dialog.locator("button[data-action=terminate-backend]").click()
    page.get_by_text(f"Backend {root} was signalled.").wait_for()
    page.get_by_text("Nobody waits for a lock.").wait_for()
    row = Intervention.objects.get()
    assert (row.actor, row.source, row.target, row.reason) == ("anna", "page", f"backend:{root}", "blocks 1 session")


def test_the_blocker_is_ended_without_a_mouse(visit, chain: tuple[int, int]) -> None:
    root, blocked = chain
    visitor = visit("Lock administrators")
    page = visitor.open("/admin/ops/locks/")
    menu = page.locator(f"#node-{blocked} > .node .menu")
    menu.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(menu.get_by_role("menuitem", name="Cancel query…")).to_be_focused()
    page.keyboard.press("Escape")
    expect(menu.locator("summary")).to_be_focused()
    page.locator(f"#node-{root} > .node button[data-action=terminate-backend]").focus()
    page.keyboard.press("Enter")
    reason = page.locator("dialog[open] input[name=reason]")
    expect(reason).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("dialog[open]")).to_have_count(0)
    page.keyboard.press("Enter")
    expect(reason).to_be_focused()
    page.keyboard.press("Enter")
    page.get_by_text(f"Backend {root} was signalled.").wait_for()
    assert visitor.complaints == []


def test_each_session_is_one_line_with_its_statement_behind_it(visit) -> None:
    with staged():
        page = visit("Viewers").open("/admin/ops/locks/")
        boxes = [line.bounding_box() for line in page.locator("#lock-tree .node").all()]
        assert (len(boxes), max(box["height"] for box in boxes) < 40) == (6, True)
        assert {round(box["x"] + box["width"]) for box in boxes} == {round(boxes[0]["x"] + boxes[0]["width"])}
        query = page.locator("#lock-tree .query", has_text="SELECT 1 FROM orders_account").last
        assert "AccessExclusiveLock" not in query.inner_text()
        query.locator("summary").click()
        assert "AccessExclusiveLock" in query.inner_text()


def test_a_refresh_keeps_what_a_person_has_folded(visit, chain: tuple[int, int]) -> None:
    root, _ = chain
    visitor = visit("Viewers")
    page = visitor.open("/admin/ops/locks/")
    details = page.locator(f"#below-{root}")
    details.locator("summary").first.click()
    page.mouse.move(0, 0)
    before = len(visitor.requests)
    wait_until(lambda: page.wait_for_timeout(50) or len(visitor.requests) >= before + 2)
    assert details.get_attribute("open") is None
    buttons = page.locator("#lock-tree button").all()
    assert [button.is_enabled() for button in buttons] == [False], "a viewer sees why the button does nothing"


def test_a_paused_page_asks_no_more(visit, chain: tuple[int, int]) -> None:
    visitor = visit("Viewers")
    page = visitor.open("/admin/ops/locks/")
    page.locator("[data-live-pause]").click()
    page.mouse.move(0, 0)
    before = len(visitor.requests)
    age = page.locator("[data-live-age]")
    wait_until(lambda: page.wait_for_timeout(50) or re.search(r" [5-9] ", age.inner_text()))
    assert len(visitor.requests) == before


def test_a_session_that_is_over_leads_to_the_login_and_not_into_the_panel(visit, chain: tuple[int, int]) -> None:
    visitor = visit("Viewers")
    page = visitor.open("/admin/ops/locks/")
    visitor.context.clear_cookies()
    page.wait_for_url("**/admin/login/**")
    assert page.locator("#id_username").count() == 1


def test_every_page_of_locks_is_accessible_and_fits(visit) -> None:
    with staged() as (scene, _):
        Sampler(connection).sample()
        visitor = visit("Lock administrators")
        for address in ("/admin/ops/locks/", "/admin/ops/locks/history/"):
            page = visitor.open(address)
            page.locator("details.sql summary").first.click()
            assert_looks_right(page)
        page = visitor.open("/admin/ops/locks/")
        page.locator(f"#node-{scene.pid('psql')} > .node button[data-action=terminate-backend]").click()
        page.wait_for_selector("dialog dl.facts")
        assert_accessible(page)


def test_a_long_queue_fits_a_phone(visit) -> None:
    with queue_for_one_row(waiters=20, bystanders=0):
        page = visit("Lock administrators", size="narrow").open("/admin/ops/locks/")
        assert "blocks 20" in page.locator("#lock-tree").inner_text()
        assert_fits(page)


def test_a_query_is_cancelled_from_the_page(visit, chain: tuple[int, int]) -> None:
    root, blocked = chain
    page = visit("Lock administrators").open("/admin/ops/locks/")
    page.locator(f"#node-{blocked} > .node .menu summary").click()
    page.locator(f"#node-{blocked} > .node button[data-action=cancel-backend]").click()
    expect(page.locator("dialog #undone")).to_contain_text("stays open, with its locks")
    page.locator("dialog button[data-action=cancel-backend]").click()
    page.get_by_text(f"Backend {blocked} was signalled.").wait_for()
    page.get_by_text("Nobody waits for a lock.").wait_for()
    assert root in activity.read().by_pid


def test_the_past_is_looked_up_by_its_time(visit) -> None:
    at = datetime(2026, 11, 21, 3, 10, tzinfo=UTC)
    LockWait.objects.create(
        pair="1", blocked_pid=902, blocker_pid=812, locktype="transactionid", target="order 1042",
        waiting_since=at - timedelta(minutes=4), last_seen=at + timedelta(minutes=1),
    )  # fmt: skip
    page = visit("Viewers").open("/admin/ops/locks/")
    page.get_by_role("link", name="History").click()
    page.get_by_label("Time (UTC)").fill("2026-11-21T03:10")
    page.get_by_label("Before and after").select_option("5")
    page.get_by_role("button", name="Look it up").click()
    assert "waits for order 1042, 4 min" in page.locator("#node-812 #node-902").inner_text()
    assert page.locator("#lock-waits tbody tr").count() == 1
    blocker, blocked = (page.locator(f"#node-{pid} > .node").bounding_box() for pid in (812, 902))
    assert blocked["x"] > blocker["x"]


def test_the_time_line_is_dragged_to_the_moment(visit) -> None:
    now = timezone.now()
    for number, minutes in enumerate((40, 20)):
        LockWait.objects.create(
            pair=str(number), blocked_pid=902 + number, blocker_pid=812, locktype="tuple", target="order 1042",
            waiting_since=now - timedelta(minutes=minutes), last_seen=now - timedelta(minutes=minutes - 5),
        )  # fmt: skip
    visitor = visit("Viewers")
    page = visitor.open("/admin/ops/locks/history/?span=1h")
    mark, box = page.get_by_role("slider", name="Moment"), page.locator(".scale").bounding_box()
    since = datetime.fromisoformat(page.locator("[name=since]").input_value())

    def at(minutes: float) -> float:
        moment = now - timedelta(minutes=minutes)
        return box["x"] + box["width"] * ((moment - since) / timedelta(hours=1))

    expect(page.locator("#node-903")).to_be_visible()
    page.mouse.move(at(10), box["y"] + 20)
    page.mouse.down()
    page.mouse.move(at(37), box["y"] + 20, steps=5)
    page.mouse.up()
    expect(page.locator("#node-812 #node-902")).to_be_visible()
    expect(page.locator("#node-903")).to_have_count(0)
    before = mark.get_attribute("aria-valuetext")
    mark.focus()
    for _ in range(19 * 6):
        page.keyboard.press("ArrowRight")
    expect(page.locator("#node-812 #node-903")).to_be_visible()
    assert mark.get_attribute("aria-valuetext") > before
    page.reload()
    expect(page.locator("#node-812 #node-903")).to_be_visible()
    assert visitor.complaints == []


def test_a_row_leads_to_its_holder(visit, chain: tuple[int, int]) -> None:
    root, _ = chain
    page = visit("Viewers").open("/admin/orders/account/")
    page.get_by_role("link", name=f"session {root}").click()
    page.wait_for_url(f"**/admin/ops/locks/#node-{root}")
    assert page.locator(f"#node-{root}:target").count() == 1
