"""The lab from the click on a preset to the comparison, the picture of one run, and what is refused."""

import threading

import pytest
from django.db import connection

from dashboard.models import LabRun
from tasks.testing import run_due
from tests.browser.looks import assert_accessible, assert_fits
from tests.dashboard.lab.stage import staged
from tests.dashboard.scenes import LOCK_ORDER

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
LAB = "/admin/ops/lab/"
LONG = 180_000  # ms, for the start of several processes on a machine that is busy with other tests


@pytest.fixture(autouse=True)
def _allowed(settings):
    settings.ROWLOCK_LAB = True


@pytest.fixture
def worker():
    """Something that carries out what is due while the browser looks on."""

    def work() -> None:
        run_due()
        connection.close()

    threads: list[threading.Thread] = []

    def start() -> None:
        threads.append(threading.Thread(target=work))
        threads[-1].start()

    yield start
    for thread in threads:
        thread.join(180)


def test_a_preset_is_run_watched_compared_and_taken_away(visit, worker):
    page = visit("Operators").open(LAB)
    page.get_by_role("link", name="The Monday morning double click").click()
    assert page.get_by_role("checkbox", name="double_checked", exact=True).is_checked()
    page.get_by_role("checkbox", name="skip_locked_claim", exact=True).uncheck()
    page.get_by_role("spinbutton", name="Items").fill("12")
    assert_looks_right(page)
    page.locator("button[data-action=run-pattern]").click()
    page.get_by_text("Waits for its turn").first.wait_for()
    worker()
    page.get_by_text("What the numbers say").wait_for(timeout=LONG)
    assert page.locator("#lab-result tbody tr").count() == 2
    assert page.locator("#lab-result").get_by_text("UNSAFE", exact=True).count() == 1
    assert page.locator("figure.bars rect.unsafe").count() == 1
    assert "Items a second, the fastest first" in page.locator("figure.bars desc").text_content()
    with page.expect_download() as download:
        page.get_by_role("link", name="Markdown").click()
    assert download.value.suggested_filename == "lab.md"
    assert_looks_right(page)
    phone = visit("Viewers", theme="dark", size="narrow").page
    phone.goto(page.url)
    phone.locator("figure.bars").wait_for()
    assert_looks_right(phone)

    page.locator("#lab-result tbody th a").nth(1).click()
    page.get_by_text("The SQL as it was sent").click()
    page.get_by_text("FOR NO KEY UPDATE").first.wait_for()
    assert "12 items in" in page.get_by_role("img").get_attribute("aria-label")
    assert_looks_right(page)
    phone.goto(page.url)
    assert_looks_right(phone)


def assert_looks_right(page) -> None:
    """In the one theme and size in which it is open."""
    assert_accessible(page)
    assert_fits(page)


def test_the_lock_tree_of_a_run_is_live_and_turns_into_its_waits(visit):
    with staged() as stage:
        stage.holding(stage.worker(0), LOCK_ORDER, [1])
        page = visit("Operators", theme="dark", size="narrow").open(f"{LAB}{stage.run.pk}/")
        page.get_by_text("Nobody waits for a lock.").wait_for()
        stage.waiting(stage.worker(1), LOCK_ORDER, [1])
        page.locator("#lock-tree .node", has_text="worker 1").wait_for(timeout=LONG)
        assert "holds order 1" in page.locator("#lock-tree .node", has_text="worker 0").first.inner_text()
        assert_looks_right(page)
        LabRun.objects.update(state="finished", schema="", waits=[[1, [0], "order 1", 0.1, 0.25]])
        page.locator("#lab-waits").get_by_text("250 ms").wait_for(timeout=LONG)
        assert page.locator("#lock-tree").count() == 0
        assert_looks_right(page)


def test_runs_are_ticked_and_compared(visit, worker):
    window = visit("Operators")
    page = window.open(LAB)
    page.get_by_role("checkbox", name="unsafe", exact=True).uncheck()
    page.get_by_role("spinbutton", name="Items").fill("4")
    page.get_by_label("Vary").select_option("workers")
    page.get_by_role("textbox", name="over").fill("1, 2")
    page.locator("button[data-action=run-pattern]").click()
    worker()
    page.locator("figure.sweep").wait_for(timeout=LONG)
    assert page.get_by_role("img", name="Items a second over workers").count() == 1
    assert_looks_right(page)
    page = window.open(LAB)
    for run in LabRun.objects.all():
        page.get_by_label(f"run {run.pk}").check()
    page.get_by_role("button", name="Compare those ticked").click()
    page.locator("figure.sweep").wait_for()
    assert page.locator("#lab-result tbody tr").count() == 2


def test_a_run_is_stopped(visit):
    page = visit("Operators").open(f"{LAB}?preset=cron")
    page.locator("button[data-action=run-pattern]").click()
    page.locator("#lab-result tbody th a").first.click()
    page.locator("button[data-action=stop-pattern]").click()
    page.get_by_text("is asked to end").wait_for()
    assert LabRun.objects.filter(stop_requested_at__isnull=False).count() == 1
