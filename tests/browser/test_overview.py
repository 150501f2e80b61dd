"""The overview in a real browser: trouble appears and goes by itself, is announced, and can be acknowledged."""

import re
from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from dashboard.attention import thresholds
from tasks.models import Attempt, BulkRun, Queue, Task, Throughput
from tasks.queue.throughput import BUCKETS
from tests.browser.looks import assert_accessible
from tests.sessions import session
from tests.tasks import rows
from tests.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
OVERVIEW = "/admin/"


def fail(number: int = 1) -> None:
    for task in [rows.failed(task_path="app.charge") for _ in range(number)]:
        Attempt.objects.create(task=task, number=5, worker_id="w", outcome="failed", exception_class="Declined")


def finished(minutes_ago: int) -> None:
    counts = [5 if number == minutes_ago % BUCKETS else 0 for number in range(BUCKETS)]
    Throughput.objects.create(
        minute=(timezone.now() - timedelta(minutes=minutes_ago)).replace(second=0, microsecond=0), queue_name="q",
        shard=0, completed=5, failed=minutes_ago % 2, run_buckets=counts, wait_buckets=counts,
    )  # fmt: skip


def test_trouble_appears_and_goes_without_a_click(visit):
    page = visit("Viewers").open(OVERVIEW)
    page.get_by_text("Nothing needs attention.").wait_for()
    fail(2)
    page.get_by_text("app.charge failed 2 times: Declined.").wait_for()
    assert page.locator("#live-region[role=status]").count() == 1
    page.locator("#live-region", has_text="app.charge failed 2 times").wait_for(state="attached")
    Task.objects.all().delete()
    page.get_by_text("Nothing needs attention.").wait_for()


def test_a_line_leads_to_the_tasks_behind_it(visit):
    fail(2)
    page = visit("Viewers").open(OVERVIEW)
    page.locator("#attention-lines .menu summary").click()
    page.get_by_role("menuitem", name="Look at them").click()
    page.wait_for_url("**/admin/tasks/task/?status=FAILED**")
    assert page.locator("#task-rows tbody tr[id]").count() == 2


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_line_is_acknowledged_and_shown_again(visit, theme):
    fail(2)
    page = visit("Operators", theme=theme).open(OVERVIEW)
    page.locator("#attention-lines .menu summary").click()
    page.locator("a[data-action=acknowledge]").click()
    page.locator("dialog").get_by_label("Reason, which the next shift reads").fill("the bank knows")
    assert_accessible(page)
    page.locator("button[data-action=acknowledge]").click()
    page.get_by_text("Nothing needs attention.").wait_for()
    page.locator("#known > summary").click()
    page.get_by_text("the bank knows").wait_for()
    assert_accessible(page)
    page.locator("button[data-action=withdraw]").click()
    page.locator("#attention-lines .severity-warning", has_text="app.charge failed 2 times").wait_for()


def test_a_dead_workers_task_is_taken_back_with_two_clicks(visit):
    Queue.objects.create(name="payouts", recovery="ask")
    task = rows.processing(rows.just_died_worker(), queue_name="payouts")
    page = visit("Operators").open(OVERVIEW)
    page.locator("#attention-lines [data-action=recover]").click()
    page.locator("dialog[open] [data-action=recover]").click()
    page.get_by_text("1 task was taken back (1 READY)").wait_for()
    task.refresh_from_db()
    assert task.status == "READY"


def test_what_failed_runs_again_with_two_clicks(visit):
    fail(2)
    page = visit("Operators").open(OVERVIEW)
    page.locator("#attention-lines [data-action=requeue]").click()
    page.locator("dialog[open] button[data-action=requeue]").click()
    page.locator(".messagelist").get_by_role("link", name="Bulk run").wait_for()
    assert BulkRun.objects.get().filter == "status=FAILED&task=app.charge&error=Declined"


def test_a_blocking_session_is_ended_with_two_clicks_and_a_reason(visit, monkeypatch):
    monkeypatch.setitem(thresholds.USUAL, "idle_seconds", 0)
    with session("psql") as forgotten:
        forgotten.execute("SELECT 1")
        page = visit("Lock administrators").open(OVERVIEW)
        page.locator("#attention-lines [data-action=terminate-backend]").click()
        page.locator("dialog[open] [name=reason]").fill("forgotten")
        page.locator("dialog[open] [data-action=terminate-backend]").click()
        page.get_by_text(f"Backend {forgotten.info.backend_pid} was signalled.").wait_for()


def test_what_is_wrong_the_queues_and_the_charts_are_on_the_first_screen(visit):
    Queue.objects.create(name="payouts", recovery="ask")
    rows.processing(rows.just_died_worker(), queue_name="payouts"), fail(2), finished(1)
    for number in range(6):
        rows.ready(queue_name=f"queue{number}")
    page = visit("Operators").open(OVERVIEW)
    for line in page.locator("#attention-lines > li.line").all():
        assert line.bounding_box()["height"] == 36
    for row in page.locator("#queue-rows tbody tr").all()[:6]:
        box = row.bounding_box()
        assert box["height"] <= 37
        assert box["y"] + box["height"] <= 900
    assert page.locator("#throughput").bounding_box()["y"] < 900


# Both are read at once: a chart that comes anew after a full minute has moved by one slot.
SAYS_SLOT = """slot => {
    const chart = document.querySelector("#throughput"), values = chart.dataset.points.split("\\n");
    return chart.querySelector("output").textContent.trim() === values.at(slot);
}"""


def test_a_chart_says_its_values_under_the_pointer_and_by_keyboard(visit):
    finished(0), finished(1)
    page = visit("Viewers").open(OVERVIEW)
    said, slider = page.locator("#throughput output"), page.locator("#throughput .cursor")
    summary = said.inner_text()
    box = slider.bounding_box()
    slider.hover(position={"x": box["width"] - 2, "y": 9})
    page.wait_for_function(SAYS_SLOT, arg=-1)
    page.mouse.move(0, 0)
    expect(said).to_have_text(summary)
    slider.focus()
    page.keyboard.press("Home")
    page.wait_for_function(SAYS_SLOT, arg=0)
    assert slider.evaluate("slider => slider.ariaValueText === slider.closest('figure').querySelector('output').value")
    page.keyboard.press("ArrowRight")
    page.wait_for_event("response", lambda answer: "/ops/charts/" in answer.url)
    page.wait_for_function(SAYS_SLOT, arg=1)
    assert page.evaluate("document.activeElement.className") == "cursor"


def test_a_time_is_chosen(visit):
    finished(90)
    page = visit("Viewers").open(OVERVIEW)
    since = timezone.now() - timedelta(hours=2)
    page.get_by_label("From, UTC").fill(f"{since:%Y-%m-%dT%H:%M}")
    page.get_by_label("to", exact=True).fill(f"{since + timedelta(hours=1):%Y-%m-%dT%H:%M}")
    page.get_by_role("button", name="Show").last.click()
    page.wait_for_url("**from=**")
    assert page.locator("#throughput rect.completed").count() == 1


def test_folded_parts_stay_as_a_person_left_them(visit):
    finished(1), finished(2)
    page = visit("Viewers").open(OVERVIEW)
    page.locator("#chart-data summary").click()
    fail()
    page.get_by_text("app.charge failed once").wait_for()
    assert page.locator("#chart-data").get_attribute("open") is not None
    assert page.locator("#chart-data tbody tr").count() == 2


@pytest.mark.parametrize("span", ["24h", "7d"])
def test_other_spans_are_one_click_away(visit, span):
    finished(1), finished(90)
    page = visit("Viewers").open(OVERVIEW)
    page.locator(f"ul.spans a[href*='span={span}']").click()
    page.wait_for_url(f"**/?span={span}#charts")
    assert page.locator("#throughput rect.completed").count() >= 1
    assert page.locator(f"#charts[hx-get*='span={span}']").count() == 1


@pytest.mark.parametrize("size", ["wide", "narrow"])
def test_charts_are_drawn_in_forced_colours(visit, size):
    for minutes in range(20):
        finished(minutes)
    page = visit("Viewers", size=size, forced_colors="active", reduced_motion="reduce").open(OVERVIEW)
    picture = page.locator("#throughput svg")
    box = picture.bounding_box()
    assert box is not None
    assert box["height"] > 80
    fill = page.locator("#throughput rect.completed").first.evaluate("element => getComputedStyle(element).fill")
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert fill not in ("none", back)
    assert "logarithmic" in page.locator("#latency").inner_text()


def test_the_age_is_that_of_the_lines_not_of_the_slower_charts(visit):
    page = visit("Viewers").open(OVERVIEW)
    page.mouse.move(0, 0)
    page.route("**/ops/charts/**", lambda route: None)  # they are not answered any more
    wait_until(lambda: page.wait_for_timeout(50) or page.evaluate("performance.now()") > 8000)

    def the_lines_are_fresh() -> bool:
        page.wait_for_timeout(50)
        seconds = re.search(r"\d+", page.locator("[data-live-age]").inner_text())
        return seconds is not None and int(seconds[0]) <= 5

    wait_until(the_lines_are_fresh)
