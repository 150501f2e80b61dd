"""An operator acts on everything that matches, watches it, and sees pages that keep themselves up to date."""

import pytest
from playwright.sync_api import Page, expect

from tasks import operations
from tasks.models import BulkRun, Task
from tasks.operations import bulk
from tasks.support.audit import Who
from tests.tasks import handlers, rows

pytestmark = pytest.mark.browser

LIST = "/admin/tasks/task/"
ANNA = Who("anna", "page")


def press_for_all(page: Page, action: str) -> None:
    """Tick a row, then all that match, and press a button of the bar or of its menu."""
    page.locator("input[name=seen]").first.check()
    page.locator(".bar").get_by_label("that match").check()
    button = page.locator(f".bar button[data-action={action}]")
    if not button.is_visible():
        page.locator(".bar .menu summary").click()
    button.click()
    page.locator("dialog form.confirm").wait_for()


def test_everything_that_matches_is_moved_and_watched(visit):
    rows.many(60, queue_name="mail")
    page = visit("Operators").open(f"{LIST}?queue=mail")
    press_for_all(page, "edit")
    assert "60 tasks match this filter" in page.locator("dialog .judged").inner_text()
    page.get_by_role("combobox", name="Queue").fill("slow")
    page.get_by_role("textbox", name="Reason").fill("flood")
    page.locator("form.confirm button[data-action=edit]").dblclick()
    page.wait_for_selector("#bulk-run")
    run = BulkRun.objects.get()
    assert page.url.endswith(f"/runs/{run.pk}/")
    bulk.carry_out(run.pk)
    expect(page.locator("#bulk-run")).to_contain_text("60 of 60 examined")
    expect(page.locator("[data-live]")).to_have_count(0)
    assert Task.objects.filter(queue_name="slow").count() == 60


def test_a_run_is_stopped(visit):
    rows.failed()
    page = visit("Operators").open(f"{LIST}?status=FAILED")
    press_for_all(page, "requeue")
    page.locator("form.confirm button[data-action=requeue]").click()
    page.locator("button[data-action=stop-run]").click()
    expect(page.locator("#bulk-run")).to_contain_text("Stopped")
    assert Task.objects.get(queue_name="default").status == "FAILED"


def test_the_list_follows_and_keeps_what_was_ticked(visit):
    first, second = rows.failed(), rows.failed()
    page = visit("Operators").open(LIST)
    page.get_by_label(f"Tick #{first.pk}").check()
    operations.requeue([second.pk], ANNA)
    page.mouse.move(5, 5)
    expect(page.locator(f"#task-{second.pk} .status")).to_have_text("READY")
    assert page.get_by_label(f"Tick #{first.pk}").is_checked()


def test_a_tasks_page_follows_its_life(visit):
    task = rows.ready()
    page = visit("Operators").open(f"{LIST}{task.pk}/")
    assert page.locator(".judged .status").inner_text() == "READY"
    page.mouse.move(5, 5)
    operations.cancel([task.pk], ANNA)
    expect(page.locator(".judged .status")).to_have_text("CANCELLED", timeout=10_000)
    assert "cancel" in page.locator(".timeline").inner_text()


def test_a_task_is_chosen_checked_and_enqueued_once(visit):
    visitor = visit("Operators")
    page = visitor.open(f"{LIST}enqueue/")
    page.get_by_role("link", name=handlers.add.module_path, exact=True).click()
    page.get_by_label("first (int)").fill("one")
    page.get_by_label("second (int)").fill("2")
    page.locator("button[data-action=enqueue]").click()
    assert "first: 'one' is not a whole number." in page.locator(".errorlist").inner_text()
    page.get_by_label("first (int)").fill("1")
    page.locator("button[data-action=check]").click()
    assert "enqueue_task" in page.locator("[role=status] code").first.inner_text()
    page.locator("button[data-action=enqueue]").dblclick()
    page.wait_for_selector("#task-detail")
    assert Task.objects.get().args == [1, 2]
    assert [complaint for complaint in visitor.complaints if "400 (Bad Request)" not in complaint] == []
    visitor.complaints.clear()


def test_a_task_is_enqueued_without_a_script(visit):
    page = visit("Operators", java_script_enabled=False).open(f"{LIST}enqueue/")
    page.get_by_role("link", name=handlers.echo.module_path, exact=True).click()
    page.get_by_label("value (JSON)").fill('{"a": 1}')
    page.locator("button[data-action=enqueue]").click()
    assert page.locator(".messagelist").inner_text().startswith("Enqueued as #")
    assert Task.objects.get().args == [{"a": 1}]


def test_why_a_queue_does_not_run_leads_to_the_burst(visit):
    rows.ready(queue_name="mail")
    page = visit("Operators").open("/admin/tasks/queue/")
    page.locator("#queue-rows .menu summary").click()
    page.get_by_role("menuitem", name="Why not running?").click()
    page.wait_for_selector("#why-no_worker")
    page.locator(".page-title .menu summary").click()
    page.get_by_role("menuitem", name="Run a burst").click()
    page.wait_for_selector("#burst-runs")
