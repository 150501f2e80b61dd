"""Hostile text in a real browser: nothing of it runs, nothing of it breaks the page, and a person can read it."""

import pytest

from tests.dashboard import hostile
from tests.people import person
from tests.sessions import session

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

NARROW_APPLICATION = "<img src=x onerror=window.pwned=1>\u202etxt"  # 63 bytes at most
PAGES = (
    "/admin/",
    "/admin/tasks/task/",
    f"/admin/tasks/task/{hostile.ID}/",
    "/admin/tasks/queue/",
    "/admin/ops/stale/",
    "/admin/ops/workers/",
    "/admin/ops/locks/",
    "/admin/ops/locks/history/?around=720",
    "/admin/ops/schedule/",
    f"/admin/ops/schedule/{hostile.ID}/",
    "/admin/ops/audit/",
    "/admin/tasks/attempt/",
    f"/admin/tasks/attempt/{hostile.ID}/change/",
    "/admin/tasks/refusedwrite/",
    "/admin/orders/order/",
    f"/admin/orders/order/{hostile.ID}/change/",
    "/admin/orders/account/",
)
# The name of a login Django keeps clean itself; the audit's own page is checked as the stock list of its table.
UNREAD = {"/admin/orders/account/", "/admin/ops/audit/"}
REFRESH = "() => document.querySelectorAll('[data-live]').forEach(panel => htmx.trigger(panel, 'refresh'))"
FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"


@pytest.fixture
def planted(transactional_db, settings):
    """A hostile row in every table, and a session with a hostile name that runs a hostile statement."""
    settings.SHARED_LOOK_SECONDS = 0
    hostile.plant()
    with session(NARROW_APPLICATION) as conn:
        conn.execute(
            f"SELECT 1 /* {hostile.SCRIPTS} password='swordfish' */ FROM tasks_task FOR SHARE".replace("%", "%%")
        )
        yield


@pytest.mark.parametrize("size", ["wide", "narrow"])
def test_nothing_runs_and_everything_is_shown_as_text(visit, planted, size):
    visitor = visit(size=size)
    visitor.log_in(person(username="root", is_superuser=True))
    dialogs: list[str] = []
    visitor.page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    wide, unread = [], []
    for path in PAGES:
        page = visitor.open(path)
        if page.locator("[data-live]").count():
            with page.expect_response(lambda answer: answer.request.headers.get("hx-request") == "true"):
                page.evaluate(REFRESH)
        assert page.evaluate("window.pwned") is None, path
        assert page.locator("img[src=x], iframe, #content style, a[href^='javascript:']").count() == 0, path
        assert "swordfish" not in page.content(), path
        if "<img src=x" not in page.locator("#content").inner_text():
            unread.append(path)
        if not page.evaluate(FITS):
            wide.append(path)
    assert dialogs == []
    assert [url for url in visitor.requests if not url.startswith((visitor.base, "data:"))] == []
    assert set(unread) <= UNREAD
    assert wide == []
