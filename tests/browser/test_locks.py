"""The live lock tree in a real browser: it shows, follows, keeps what a person opened, and ends a blocker."""

import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import connection

from dashboard.locks import activity
from dashboard.locks.history import Sampler
from dashboard.models import LockWait
from orders.models import Account
from tasks.models import Intervention
from tests.browser.looks import assert_fits, assert_looks_right
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
    assert "1 blocked" in tree.locator(f"#node-{root} > .node").inner_text()
    assert "worker 7f3a" in tree.locator(f"#node-{root} #node-{blocked}").inner_text()

    tree.locator(f"#node-{root} > .node button[data-action=terminate-backend]").click()
    assert f"{blocked} worker 7f3a" in page.locator("dl.facts").inner_text()
    page.locator("input[name=reason]").fill("forgotten session")
    page.locator("button[data-action=terminate-backend]").click()
    page.get_by_text(f"Backend {root} was signalled.").wait_for()
    page.get_by_text("Nobody waits for a lock.").wait_for()
    row = Intervention.objects.get()
    assert (row.actor, row.source, row.target, row.reason) == ("anna", "page", f"backend:{root}", "forgotten session")


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
    assert page.locator("#lock-tree button").count() == 0, "a viewer sees no buttons"


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
        page.wait_for_selector("dl.facts")
        assert_looks_right(page)


def test_a_long_queue_fits_a_phone(visit) -> None:
    with queue_for_one_row(waiters=20, bystanders=0):
        page = visit("Lock administrators", size="narrow").open("/admin/ops/locks/")
        assert "20 blocked" in page.locator("#lock-tree").inner_text()
        assert_fits(page)


def test_a_query_is_cancelled_from_the_page(visit, chain: tuple[int, int]) -> None:
    root, blocked = chain
    page = visit("Lock administrators").open("/admin/ops/locks/")
    page.locator(f"#node-{blocked} > .node button[data-action=cancel-backend]").click()
    assert "stays open, with its locks" in page.locator("#undone").inner_text()
    page.locator("button[data-action=cancel-backend]").click()
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
    page.get_by_role("link", name="Who blocked whom earlier").click()
    page.get_by_label("Time (UTC)").fill("2026-11-21T03:10")
    page.get_by_label("Before and after").select_option("5")
    page.get_by_role("button", name="Look it up").click()
    assert "waits 4 minutes for order 1042" in page.locator("#node-812 #node-902").inner_text()
    assert page.locator("#lock-waits tbody tr").count() == 1
    blocker, blocked = (page.locator(f"#node-{pid} > .node").bounding_box() for pid in (812, 902))
    assert blocked["x"] > blocker["x"]


def test_a_row_leads_to_its_holder(visit, chain: tuple[int, int]) -> None:
    root, _ = chain
    page = visit("Viewers").open("/admin/orders/account/")
    page.get_by_role("link", name=f"session {root}").click()
    page.wait_for_url(f"**/admin/ops/locks/#node-{root}")
    assert page.locator(f"#node-{root}:target").count() == 1
