"""The lab from the click on a preset to the comparison, the picture of one run, and what is refused."""

import threading

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.db import connection

from dashboard.models import LabRun
from tasks.testing import run_due

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
LAB = "/admin/ops/lab/"


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
        thread.join(60)


@pytest.mark.parametrize(("theme", "size"), [("light", "wide"), ("dark", "narrow")])
def test_a_preset_is_run_watched_and_compared(visit, worker, theme, size):
    page = visit("Operators", theme=theme, size=size).open(LAB)
    page.get_by_role("link", name="The Monday morning double click").click()
    assert page.get_by_role("checkbox", name="double_checked", exact=True).is_checked()
    page.get_by_label("Items").fill("12")
    assert Axe().run(page).violations_count == 0
    page.locator("button[data-action=run-pattern]").click()
    page.get_by_text("Waits for its turn").first.wait_for()
    worker()
    page.get_by_text("What the numbers say").wait_for(timeout=60_000)
    assert page.locator("#lab-result tbody tr").count() == 3
    assert page.locator("#lab-result").get_by_text("UNSAFE", exact=True).count() == 1
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()

    page.locator("#lab-result tbody th a").nth(1).click()
    picture = page.get_by_role("img")
    picture.wait_for()
    assert "12 items in" in picture.get_attribute("aria-label")
    page.get_by_text("The SQL as it was sent").click()
    page.get_by_text("FOR NO KEY UPDATE").first.wait_for()
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    wide, screen = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide <= screen


def test_runs_are_ticked_and_compared(visit, worker):
    window = visit("Operators")
    page = window.open(LAB)
    page.get_by_role("checkbox", name="unsafe", exact=True).uncheck()
    page.get_by_label("Items").fill("4")
    page.get_by_label("Vary").select_option("workers")
    page.get_by_label("over").fill("1, 2")
    page.locator("button[data-action=run-pattern]").click()
    worker()
    page.locator("figure.sweep").wait_for(timeout=60_000)
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
