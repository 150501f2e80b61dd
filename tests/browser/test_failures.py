"""The page of failures in a real browser: found, run again and acknowledged, by mouse and by keyboard."""

from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import Page

from dashboard.models import Acknowledgement
from tasks.models import Attempt, BulkRun
from tests.browser.looks import assert_looks_right
from tests.tasks import rows

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
PAGE = "/admin/ops/failures/"
KINDS = "#failure-kinds tbody tr"


def fail(fingerprint: str, message: str = "declined", **columns: object) -> Attempt:
    """The attempt of a FAILED task."""
    columns = {"finished_at": timezone.now() - timedelta(minutes=5), **columns}
    return Attempt.objects.create(
        task=rows.failed(task_path="app.tasks.charge"), number=5, worker_id="w7f", outcome="failed",
        exception_class="app.CardDeclined", traceback=f"Traceback\napp.CardDeclined: {message}",
        fingerprint=fingerprint, **columns,
    )  # fmt: skip


@pytest.fixture
def failures(live_server) -> None:
    for number in range(14):
        fail("aaaaaaaaaaaa app/tasks.py:charge", f"order {number}")
    fail("bbbbbbbbbbbb app/" + "long/" * 30 + "client.py:post", "no answer " * 60, release="2026.11.3")


def test_the_pages_are_accessible_and_fit(visit, failures):
    visitor = visit("Operators")
    for address in (PAGE, f"{PAGE}?q=nothing", f"{PAGE}aaaaaaaaaaaa/", f"{PAGE}bbbbbbbbbbbb/", f"{PAGE}?since=soon"):
        assert_looks_right(visitor.open(address))
    visitor.complaints.clear()  # the browser's word on the 400 of the last


def test_a_viewer_sees_which_rights_are_missing(visit, failures):
    page = visit("Viewers").open(PAGE)
    button = page.locator(f"{KINDS} button[data-action=requeue]").first
    assert button.is_disabled()
    assert "tasks.requeue_task" in page.locator(f"#{button.get_attribute('aria-describedby')}").inner_text()
    assert_looks_right(page)


def test_a_row_is_one_line_and_the_first_is_high_on_the_page(visit, failures):
    page = visit("Operators").open(PAGE)
    boxes = page.locator(KINDS).evaluate_all("rows => rows.map(row => row.getBoundingClientRect().toJSON())")
    assert max(box["height"] for box in boxes) <= 38
    assert boxes[0]["top"] < 260
    assert page.locator("nav.pages a[aria-current]").inner_text() == "Failures (2)"


def test_two_clicks_run_all_of_a_kind_again(visit, failures):
    page = visit("Operators").open(PAGE)
    row = page.locator("#failure-aaaaaaaaaaaa")
    row.get_by_role("button", name="Run all again").click()
    dialog = page.locator("dialog#question")
    dialog.get_by_text("14 tasks").wait_for()
    dialog.get_by_role("button", name="Run again: 14").click()
    page.wait_for_url("**/runs/**")
    assert BulkRun.objects.get().filter == "status=FAILED&failure=aaaaaaaaaaaa"


def test_by_keyboard_the_menu_acknowledges_until_it_grows(visit, failures):
    page = visit("Operators").open(PAGE)
    summary = page.locator("#failure-aaaaaaaaaaaa .menu summary")
    summary.focus()
    page.keyboard.press("Enter")
    page.locator("#failure-aaaaaaaaaaaa [data-action=acknowledge]").focus()
    page.keyboard.press("Enter")
    page.locator("dialog#question input[name=reason]").fill("the bank knows")
    page.keyboard.press("Enter")
    page.locator(".messagelist").wait_for()
    [known] = Acknowledgement.objects.all()
    assert (known.line, known.size, known.reason) == ("failed:aaaaaaaaaaaa", 14, "the bank knows")
    text = page.goto(f"{page.url.partition('/admin/')[0]}{PAGE}").text()
    assert "acknowledged by" in text
    assert page.locator("nav.pages a[aria-current]").inner_text() == "Failures (1)"


def test_an_opened_menu_takes_the_focus_from_nobody_who_was_faster(visit, failures):
    page = visit("Operators").open(PAGE)
    menu = page.locator("#failure-aaaaaaaaaaaa .menu")
    focused = menu.evaluate("""async (menu) => {
        const told = new Promise((done) => menu.addEventListener("toggle", () => setTimeout(done)));
        menu.open = true;
        menu.querySelector("[data-action=acknowledge]").focus();
        await told;
        return document.activeElement.dataset.action;
    }""")
    assert focused == "acknowledge"


def test_the_search_and_the_times_narrow_the_list(visit, failures):
    page = visit("Viewers").open(PAGE)
    page.get_by_label("Task, exception or place").fill("client.py")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=client.py**")
    assert page.locator(KINDS).count() == 1
    page.get_by_role("link", name="1 h", exact=True).click()
    page.wait_for_url("**since=1h**")
    assert page.get_by_label("Task, exception or place").input_value() == "client.py"
    page.get_by_label("to (UTC)").fill("10m")
    page.keyboard.press("Enter")
    page.get_by_text("No attempt failed in this time.").wait_for()
    page.get_by_role("link", name="Show everything").click()
    page.wait_for_url(f"**{PAGE}")
    assert page.locator(KINDS).count() == 2


def test_a_kind_opens_to_its_attempts_with_the_traceback(visit, failures):
    page = visit("Viewers").open(PAGE)
    page.get_by_role("link", name="CardDeclined").first.press("Enter")
    page.wait_for_selector("#failure-attempts")
    page.locator("summary", has_text="Traceback").click()
    assert "app.CardDeclined" in page.locator("pre").inner_text()


def test_it_follows_what_happens(visit, failures, settings):
    page = visit("Viewers").open(f"{PAGE}?since=1h")
    fail("cccccccccccc app/new.py:f")
    refreshed(page)
    page.locator("#failure-cccccccccccc").wait_for()


def refreshed(page: Page) -> None:
    page.evaluate("document.querySelectorAll('[data-live]').forEach(panel => htmx.trigger(panel, 'refresh'))")
