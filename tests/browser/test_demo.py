"""The demo in a real browser: its ribbon and pages are legible, and a real one does what its hints promise."""

import pytest
from playwright.sync_api import Page

from dashboard.demo import control, director
from tests.browser.looks import SIZES, assert_accessible, assert_fits, assert_nothing_inline
from tests.dashboard import sites
from tests.sessions import session
from tests.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
PASSWORD = "seen in a browser"


@pytest.fixture
def _directed(live_server, monkeypatch):
    """The demo's rows, and a session that is its director as far as anybody can see."""
    monkeypatch.setenv("ROWLOCK_DEMO", "1")
    director.load_once()
    with session("rowlock:demo:director", autocommit=True) as conn:
        wait_until(lambda: conn.execute(control.TAKE).fetchone()[0])
        yield


@pytest.mark.usefixtures("_directed")
@pytest.mark.parametrize(("theme", "size"), [("light", "narrow"), ("dark", "wide")])
def test_the_ribbon_and_the_pages_are_accessible_and_fit(visit, theme, size):
    visitor = visit("Operators", theme=theme, size=size)
    for address in ("/admin/ops/demo/", "/admin/ops/demo/remove/", "/admin/all/"):
        page = visitor.open(address)
        page.locator("aside.demo summary").click()
        assert "manage.py demo --stop" in page.locator("aside.demo").inner_text()
        assert page.locator("#header").bounding_box()["height"] <= (100 if size == "narrow" else 36)
        assert_accessible(page)
        assert_fits(page)
        assert_nothing_inline(page)
        assert small_targets(page, 44 if size == "narrow" else 26) == []


def small_targets(page: Page, least: int) -> list[str]:
    """List the ribbon's controls that are smaller than a finger or a mouse needs."""
    targets = page.locator("aside.demo :is(button, a.button, summary)").all()
    sizes = {target.inner_text(): target.bounding_box() for target in targets if target.is_visible()}
    return [text for text, box in sizes.items() if min(box["height"], box["width"]) < least - 0.5]


@pytest.fixture
def window(browser, tmp_path):
    """A window on a fresh site with its demo, logged in."""
    checkout = sites.new_checkout(tmp_path / "checkout")
    with sites.running(checkout, ADMIN_PASSWORD=PASSWORD) as site:
        context = browser.new_context(viewport=SIZES["wide"], locale="en-GB", base_url=site.url)
        page = context.new_page()
        page.goto("/admin/")
        page.get_by_label("Username").fill("admin")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Log in").click()
        page.locator("aside.demo").wait_for()
        yield page
        context.close()
        assert site.end() == 0


def test_the_first_two_minutes(window):
    until_staged(window)
    terminate_the_root(window)
    take_the_payout_back(window)
    kill_a_worker(window)
    remove_everything(window)


def until_staged(page: Page) -> None:
    page.goto("/admin/ops/demo/")
    for scene, number in {
        "chain": 3,
        "payout": 1,
        "failures": 14,
        "key": 4,
        "orders": 12,
        "unknown": 1,
        "cron": 1,
        "lab": 3,
    }.items():
        cell = page.locator(f"#scene-{scene} td.number")
        wait_until(
            lambda cell=cell, number=number: cell.inner_text() == str(number) or page.wait_for_timeout(100), seconds=40
        )


def terminate_the_root(page: Page) -> None:
    page.goto("/admin/ops/locks/")
    page.locator("#lock-tree button[data-action=terminate-backend]").first.click()
    page.locator("dialog button[data-action=terminate-backend]").click()
    page.get_by_text("Nobody waits for a lock.").wait_for()


def take_the_payout_back(page: Page) -> None:
    page.goto("/admin/ops/stale/")
    page.locator("[id^=stale-] button[data-action=recover]").first.click()
    page.get_by_role("textbox", name="Reason").fill("not paid yet")
    page.locator("form.confirm button[data-action=recover]").click()
    page.locator(".messagelist").wait_for()
    page.goto("/admin/tasks/task/?queue=demo-payouts")
    wait_until(lambda: "Completed" in page.locator("#task-rows").inner_text() or page.reload())


def kill_a_worker(page: Page) -> None:
    page.goto("/admin/ops/audit/")
    page.locator("aside.demo button[data-action=demo-kill]").click()
    page.locator("#demo-kills strong").wait_for(timeout=30_000)
    seconds = float(page.locator("#demo-kills strong").inner_text().removesuffix(" s"))
    assert seconds > 0


def is_removed(page: Page) -> bool:
    """Whether nothing of the demo is left; what a worker is at stays, so one removes again."""
    page.goto("/admin/tasks/task/")
    if page.locator("aside.demo").count():
        page.locator("aside.demo [data-action=demo-remove]").click()
        page.locator("form.confirm input[name=reason]").fill("seen it")
        page.locator("form.confirm button[data-action=demo-remove]").click()
        page.get_by_text("Removed:").wait_for()
        page.goto("/admin/tasks/task/")
    return page.locator("aside.demo").count() == 0


def remove_everything(page: Page) -> None:
    wait_until(lambda: is_removed(page), seconds=60)
    assert "demo-" not in page.locator("#task-rows").inner_text()
