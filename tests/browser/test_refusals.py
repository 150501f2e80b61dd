"""Pages that say no, as people meet them: accessible in both themes, within a phone's screen, and with a way on."""

import threading

import pytest
from django.conf import settings
from django.test import Client
from playwright.sync_api import Page

from dashboard.live import seats
from dashboard.views import audit
from tests.browser.looks import assert_accessible, assert_fits, assert_nothing_inline
from tests.people import PASSWORD, person

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
LOGIN, AUDIT = "/admin/login/", "/admin/ops/audit/"
LOOKS = [("light", "wide"), ("dark", "narrow")]


def assert_says_no(page: Page, text: str, way_on: str) -> None:
    assert text in page.get_by_role("alert").inner_text()
    assert page.locator("#content :is(a.back, a.button)", has_text=way_on).is_visible()
    assert_accessible(page)
    assert_fits(page)
    assert_nothing_inline(page)


def refuse_to_list(*_: object) -> None:
    raise ValueError("a mistake of ours")


@pytest.mark.parametrize(("theme", "size"), LOOKS)
def test_a_page_that_says_no_is_accessible_and_leads_on(visit, monkeypatch, theme, size):
    visitor = visit(theme=theme, size=size)
    visitor.log_in(person())
    assert_says_no(visitor.open("/admin/ops/locks/"), "dashboard.view_backend", "Back to the overview")
    assert_says_no(visitor.open("/admin/nothing/here/"), "There is no page at this address.", "Back to the overview")
    visitor.log_in(person("Viewers"))
    assert_says_no(visitor.open("/admin/tasks/task/999/"), "Task #999 does not exist", "Back to the overview")
    monkeypatch.setattr(audit, "entries", refuse_to_list)
    assert_says_no(visitor.open(AUDIT), "The log of the web server has the traceback.", "Back to the overview")
    monkeypatch.setattr(seats, "_seats", threading.Semaphore(0))
    assert_says_no(visitor.open(AUDIT), "Too many pages", "Try again")
    assert [text for text in visitor.complaints if "the server responded with a status of" not in text] == []
    visitor.complaints.clear()


@pytest.mark.parametrize(("theme", "size"), LOOKS)
def test_the_doors_are_accessible_when_shut_and_when_left(visit, theme, size):
    visitor = visit("Viewers", theme=theme, size=size)
    page = visitor.open("/admin/all/")
    page.locator("#logout-form button").click()
    page.get_by_role("link", name="Log in again").wait_for()
    assert_accessible(page)
    assert_fits(page)
    for number in range(settings.AXES_FAILURE_LIMIT - 1):
        Client().post(LOGIN, {"username": "anna", "password": f"wrong {number}"})
    page.get_by_role("link", name="Log in again").click()
    page.get_by_label("Username").fill("anna")
    page.get_by_label("Password").fill(f"not {PASSWORD}")
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="Too many wrong passwords").wait_for()
    assert_says_no(page, "For 15 minutes it cannot log in", "Back to the login")
    assert [text for text in visitor.complaints if "429" not in text] == []
    visitor.complaints.clear()
