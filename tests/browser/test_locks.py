"""The live lock tree in a real browser: it shows, follows, keeps what a person opened, and ends a blocker."""

import re
import threading
from collections.abc import Iterator

import psycopg
import pytest
from django.contrib.auth.models import User

from orders.models import Account
from tasks.models import Intervention
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
