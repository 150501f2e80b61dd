"""The overview in a real browser: trouble appears and goes by itself, is announced, and can be acknowledged."""

import re
from datetime import timedelta

import pytest
from django.utils import timezone

from tasks.models import Attempt, Task, Throughput
from tasks.queue.throughput import BUCKETS
from tests.browser.looks import assert_accessible
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
    page.locator("#attention-lines a.button").click()
    page.wait_for_url("**/admin/tasks/task/?status=FAILED**")
    assert page.locator("#task-rows tbody tr[id]").count() == 2


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_line_is_acknowledged_and_shown_again(visit, theme):
    fail(2)
    page = visit("Operators", theme=theme).open(OVERVIEW)
    page.locator("a[data-action=acknowledge]").click()
    page.get_by_label("Reason, which the next shift reads").fill("the bank knows")
    assert_accessible(page)
    page.locator("button[data-action=acknowledge]").click()
    page.get_by_text("Nothing needs attention.").wait_for()
    page.locator("#known summary").click()
    page.get_by_text("the bank knows").wait_for()
    assert_accessible(page)
    page.locator("button[data-action=withdraw]").click()
    page.locator("#attention-lines li.red", has_text="app.charge failed 2 times").wait_for()


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
    picture = page.get_by_role("img").first
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
