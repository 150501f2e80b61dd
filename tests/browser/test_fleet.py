"""The fleet in a real browser: in both themes, wide and narrow, up to date, and its links open the row there."""

import pytest
from playwright.sync_api import expect

from dashboard.fleet import look
from tests.browser.looks import assert_looks_right
from tests.dashboard.fleet.afar import free_port, serving, setting

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
PAGE = "/admin/ops/fleet/"
KINDS = ("ok", "critical", "warning", "hostile", "lazy", "garbage", "token", "many")


def test_it_looks_right_follows_what_happens_and_leads_there(visit, settings):
    look.forget_all_but(set())
    with serving() as afar, free_port() as port:
        urls = {kind: f"{afar.url}/{kind}" for kind in KINDS} | {"down": f"http://127.0.0.1:{port}"}
        settings.ROWLOCK = {**settings.ROWLOCK, "FLEET": setting(**urls)}
        page = visit("Viewers").open(f"{PAGE}?q=4711")
        rows = page.locator("#fleet-rows tbody tr")
        expect(rows).to_have_count(len(urls))
        expect(rows.first).to_contain_text("down")
        row = rows.filter(has=page.get_by_role("link", name="many", exact=True))
        row.locator("summary", has_text="and 29 more").click()
        assert_looks_right(page)
        expect(row.get_by_text("queue-3", exact=True)).to_be_visible()
        afar.is_slow.set()
        expect(rows.filter(has_text="lazy")).to_contain_text("No answer")
        expect(rows.filter(has_text="lazy")).to_contain_text("ago")
        expect(row.get_by_text("queue-3", exact=True)).to_be_visible()
        expect(page.get_by_role("navigation").get_by_role("link", name="Fleet")).to_have_count(1)
        found = page.locator("#found").get_by_role("link", name="Task #4711 charge · READY").first
        assert found.get_attribute("href") == f"{afar.url}/admin/tasks/task/4711/"
