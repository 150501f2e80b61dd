"""The page of workers in a real browser: legible everywhere; a worker is asked to stop, and a hanging one relieved."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import Page

from tasks.models import Task, Worker
from tests.browser.looks import assert_accessible, assert_looks_right
from tests.tasks import rows
from tests.tasks.claiming import claim

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
WORKERS = "/admin/ops/workers/"


@pytest.fixture
def hanging(live_server) -> Iterator[list]:
    """A live worker that hangs on the first of its three tasks, beside a dead one and one with long names."""
    rows.processing(rows.dead_worker("w-dead"))
    Worker.objects.create(
        id="w" * 60, hostname="db1." + "host" * 20, pid=1, queues=["q" * 120], stopped_at=timezone.now(),
        stop_reason="stopped",
    )  # fmt: skip
    for _ in range(3):
        rows.ready()
    with rows.living_worker("w1") as worker:
        claims = claim(worker_id=worker)
        since = timezone.now() - timedelta(minutes=10)
        Worker.objects.filter(pk=worker).update(current_task_id=claims[0].id, current_since=since)
        yield claims


def test_the_pages_are_accessible_and_fit(visit, hanging):
    page = visit("Operators").open(WORKERS)
    assert_looks_right(page)
    for action in ("release-unstarted", "stop-worker", "recover"):
        press(page, action)
        page.locator("dialog form.confirm").wait_for()
        assert_accessible(page)
        page.get_by_role("link", name="Back").click()


def press(page: Page, action: str) -> None:
    """Press this button of a row, in its menu if it stands there."""
    button = page.locator(f"#worker-rows button[data-action={action}]")
    if not button.is_visible():
        page.locator(f"tr:has(button[data-action={action}]) summary").click()
    button.click()


def test_what_a_hanging_worker_has_not_begun_is_released(visit, hanging):
    page = visit("Operators").open(WORKERS)
    press(page, "release-unstarted")
    page.get_by_role("textbox", name="Reason").fill("the supplier does not answer")
    page.locator("form.confirm button[data-action=release-unstarted]").dblclick()
    assert "2 tasks were released." in page.locator(".messagelist").inner_text()
    page.locator("#worker-rows button[data-action=release-unstarted]").wait_for(state="detached")
    assert Task.objects.filter(status="READY", attempt=0).count() == 2


def test_a_worker_is_asked_to_stop(visit, hanging):
    page = visit("Operators").open(WORKERS)
    press(page, "stop-worker")
    page.locator("dialog button[data-action=stop-worker]").click()
    assert "Worker w1 is asked to finish" in page.locator(".messagelist").inner_text()
    assert "Stopping" in page.locator("#worker-rows").inner_text()
    assert page.locator("button[data-action=stop-worker]").count() == 0


def test_what_a_dead_worker_held_is_taken_back_in_two_clicks(visit, hanging):
    page = visit("Operators").open(WORKERS)
    page.locator("#worker-rows button[data-action=recover]").click()
    page.locator("dialog button[data-action=recover]").click()
    assert "1 task was taken back (1 READY)" in page.locator(".messagelist").inner_text()


@pytest.mark.usefixtures("live_server")
def test_eighteen_workers_are_seen_at_once(visit):
    for number in range(30):
        rows.processing(rows.dead_worker(f"w-{number}"))
    with rows.living_worker("w-alive"):
        page = visit("Operators").open(WORKERS)
        boxes = [row.bounding_box() for row in page.locator("#worker-rows tbody tr").all()]
    assert {box["height"] for box in boxes} <= {36, 37}
    assert len([box for box in boxes if box["y"] + box["height"] <= 900]) >= 18


def test_the_rows_follow_the_workers(visit, live_server):
    page = visit("Viewers").open(WORKERS)
    assert "No worker is alive" in page.locator("#content").inner_text()
    with rows.living_worker("w-new"):
        page.locator("#worker-rows tr", has_text="w-new").wait_for()
        assert page.locator("#no-worker").count() == 0
