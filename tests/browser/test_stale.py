"""What is stuck, in a real browser: legible everywhere, and taken back one, some or all."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from tasks.models import Epoch, Intervention, Queue, Task, Worker
from tasks.queue import presence
from tests.browser.looks import assert_accessible, assert_looks_right
from tests.tasks import rows

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
STALE = "/admin/ops/stale/"


@pytest.fixture
def tasks(live_server) -> list[Task]:
    """Tasks of two dead workers, in a queue that asks a person and in one with long names."""
    Queue.objects.create(name="payouts", recovery="ask")
    first = rows.processing(rows.dead_worker("w-first"), queue_name="payouts")
    Worker.objects.filter(pk="w-first").update(current_task_id=first.pk, hostname="db1." + "host" * 20)
    more = [rows.processing("w-first", queue_name="payouts", attempt=number) for number in (2, 5)]
    long = rows.processing(rows.dead_worker("w" * 60), task_path="app." + "long" * 50, queue_name="q" * 120)
    return [first, *more, long]


@pytest.fixture
def silent(live_server) -> Iterator[Task]:
    """A task of a worker that keeps its session and says nothing, while the grace of a restart is running."""
    with rows.living_worker("w-silent", lease_seconds=60):
        now = timezone.now()
        Epoch.objects.update_or_create(id=1, defaults={"token": presence.see_epoch(connection), "first_seen_at": now})
        Worker.objects.update(heartbeat_at=now - timedelta(seconds=90))
        yield rows.processing("w-silent")


def statuses() -> list[str]:
    return list(Task.objects.order_by("pk").values_list("status", flat=True))


def test_the_pages_are_accessible_and_fit(visit, tasks):
    page = visit("Operators").open(STALE)
    page.locator(f"#stale-{tasks[0].pk}").wait_for()
    assert_looks_right(page)
    page.locator("#take-all button[data-action=recover]").click()
    page.locator("dialog form.confirm").wait_for()
    assert_accessible(page)
    page.keyboard.press("Escape")
    page.locator("tr.worker summary").first.click()
    page.get_by_text("it has no database session").first.wait_for()
    assert_looks_right(page)


def test_an_empty_page_says_that_nothing_is_stuck(visit, live_server):
    page = visit("Viewers").open(STALE)
    assert "Nothing is stuck" in page.locator("#stale-rows").inner_text()
    assert_looks_right(page)


def test_one_is_taken_back_from_its_row(visit, tasks):
    page = visit("Operators").open(STALE)
    page.locator(f"#stale-{tasks[0].pk} button[data-action=recover]").click()
    page.get_by_role("textbox", name="Reason").fill("db1 is gone")
    page.locator("form.confirm button[data-action=recover]").click()
    assert f"Take back: done for #{tasks[0].pk}." in page.locator(".messagelist").inner_text()
    assert page.url.endswith(STALE)
    assert statuses() == ["READY", "PROCESSING", "PROCESSING", "PROCESSING"]
    assert Intervention.objects.get().reason == "db1 is gone"


def test_without_a_script_the_question_is_a_page(visit, tasks):
    page = visit("Operators", java_script_enabled=False).open(STALE)
    page.locator("#take-all button[data-action=recover]").click()
    page.get_by_role("heading", name="Take these tasks back?").wait_for()
    page.get_by_role("button", name="Take back").click()
    assert "4 tasks were taken back" in page.locator(".messagelist").inner_text()


def test_the_menu_of_a_row_is_used_by_keyboard(visit, tasks):
    page = visit("Operators").open(STALE)
    page.locator(f"#stale-{tasks[0].pk} button[data-action=recover]").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.locator(f"#stale-{tasks[0].pk} [role=menu]").wait_for()
    page.keyboard.press("Escape")
    page.locator(f"#stale-{tasks[0].pk} [role=menu]").wait_for(state="hidden")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    page.locator("dialog button[data-action=recover]").focus()
    page.keyboard.press("Enter")
    page.locator(".messagelist", has_text=f"Take back: done for #{tasks[0].pk}.").wait_for()


@pytest.mark.usefixtures("live_server")
def test_eighteen_rows_are_seen_at_once(visit):
    rows.processing(rows.dead_worker("w-dead"))
    for _ in range(30):
        rows.processing("w-dead")
    with rows.living_worker("w-alive"):
        page = visit("Operators").open(STALE)
        boxes = [row.bounding_box() for row in page.locator("#stale-rows tbody tr[id^=stale-]").all()]
    assert len([box for box in boxes if box["y"] + box["height"] <= 900]) >= 18


def test_the_ticked_are_taken_back(visit, tasks):
    page = visit("Operators").open(STALE)
    page.get_by_label(f"Tick #{tasks[0].pk}").check()
    page.get_by_label(f"Tick #{tasks[2].pk}").check()
    page.locator(".bar button[data-action=recover]").click()
    page.locator("form.confirm button[data-action=recover]").click()
    assert "Take back: done" in page.locator(".messagelist").inner_text()
    assert statuses() == ["READY", "PROCESSING", "FAILED", "PROCESSING"]


def test_all_are_taken_back_by_one_button(visit, tasks):
    page = visit("Operators").open(STALE)
    assert page.locator("#take-all button").first.inner_text() == "Take back all: 4 tasks…"
    page.locator("#take-all button[data-action=recover]").click()
    assert "nobody will run it" in page.locator("form.confirm").inner_text()
    page.locator("form.confirm button[data-action=recover]").click()
    assert "4 tasks were taken back (3 READY, 1 FAILED)" in page.locator(".messagelist").inner_text()
    assert "Nothing is stuck" in page.locator("#stale-rows").inner_text()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_silent_workers_task_is_taken_only_with_force_and_a_reason(visit, silent, theme):
    visitor = visit("Operators", theme=theme)
    page = visitor.open(STALE)
    assert "The database restarted" in page.locator("#restart").inner_text()
    assert "Worker silent" in page.locator("#stale-rows").inner_text()
    assert_accessible(page)
    page.locator(f"#stale-{silent.pk} button[data-action=requeue]").click()
    page.locator("form.confirm button[data-action=requeue]").click()
    assert "not changed" in page.locator(".messagelist").inner_text()
    page.locator(f"#stale-{silent.pk} button[data-action=requeue]").click()
    page.get_by_label("Take them from their live workers").check()
    page.get_by_role("textbox", name="Reason").fill("db1 is burning")
    page.locator("form.confirm button[data-action=requeue]").click()
    page.locator(".messagelist", has_text=f"Run again: done for #{silent.pk}.").wait_for()
    assert page.url.endswith(STALE)
    assert statuses() == ["READY"]
