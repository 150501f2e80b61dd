"""The ten commonest jobs of an operator, each from the overview, with real mouse and keyboard, and what it may cost.

A keystroke is a key or a character; a chord such as Ctrl-K is one. docs/measurements/pages.txt tells these numbers.
"""

import re
from datetime import timedelta
from urllib.parse import urlsplit

import pytest
from django.utils import timezone
from playwright.sync_api import Locator, Page, expect

from dashboard.locks import activity
from orders.models import Order
from tasks.models import Attempt, BulkRun, Intervention, Lock, Queue, Task, Worker
from tasks.operations import bulk
from tests.browser.conftest import Visit
from tests.dashboard.scenes import staged
from tests.orders import orders
from tests.tasks import rows
from tests.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


class Operator:
    """Somebody who has just logged in and looks at the overview; counts clicks and keystrokes."""

    def __init__(self, visit: Visit, group: str) -> None:
        self.page: Page = visit(group).open("/admin/")
        self.clicks = self.keys = 0

    def click(self, target: str | Locator) -> None:
        self.clicks += 1
        (self.page.locator(target) if isinstance(target, str) else target).click()

    def press(self, *keys: str) -> None:
        self.keys += len(keys)
        for key in keys:
            self.page.keyboard.press(key)

    def write(self, text: str) -> None:
        self.keys += len(text)
        self.page.keyboard.type(text)

    def menu(self, row: Locator) -> None:
        self.click(row.locator(".menu summary"))

    def is_told(self, text: str) -> Locator:
        """The answer stays on the page, which is the overview after an act of the overview; its links."""
        answer = self.page.locator(".messagelist")
        expect(answer).to_contain_text(text)
        return answer.get_by_role("link")

    def is_back(self) -> None:
        assert urlsplit(self.page.url).path == "/admin/"

    def has_spent(self, *, clicks: int, keys: int = 0) -> None:
        assert self.clicks <= clicks
        assert self.keys <= keys


def line(operator: Operator, text: str) -> Locator:
    """A line of Needs attention."""
    return operator.page.locator("#attention-lines li.line", has_text=text)


def queue_row(operator: Operator, name: str) -> Locator:
    return operator.page.locator("#queue-rows tbody tr", has_text=name)


def failed(error: str, **columns: object) -> Task:
    task = rows.failed(task_path="app.charge", **columns)
    Attempt.objects.create(task=task, number=5, worker_id="w", outcome="failed", exception_class=error)
    return task


def status(task: Task) -> str:
    return Task.objects.get(pk=task.pk).status


def test_1_a_dead_workers_task_is_taken_back(visit):
    Queue.objects.create(name="payouts", recovery="ask")
    task = rows.processing(rows.just_died_worker(), queue_name="payouts")
    operator = Operator(visit, "Operators")
    operator.click(line(operator, "payouts").locator("[data-action=recover]"))
    operator.click("dialog[open] [data-action=recover]")
    expect(operator.is_told("1 task was taken back")).to_have_text(f"#{task.pk}")
    operator.is_back()
    assert status(task) == "READY"
    operator.has_spent(clicks=2)


def test_2_a_blocking_chain_is_ended(visit):
    with staged() as (scene, _):
        root, waiter = scene.pid("psql"), scene.pid("rowlock:worker:7f")
        operator = Operator(visit, "Lock administrators")
        operator.click(line(operator, f"pid {root}").locator("[data-action=terminate-backend]"))
        expect(operator.page.locator("dialog #freed")).to_contain_text(str(waiter))
        operator.click("dialog[open] [data-action=terminate-backend]")
        expect(operator.is_told(f"Backend {root} was signalled.")).to_have_text(str(root))
        operator.is_back()
        wait_until(lambda: root not in activity.read().by_pid)
        assert activity.read().by_pid[waiter].blocked_by == ()
    assert Intervention.objects.get().target == f"backend:{root}"
    operator.has_spent(clicks=2)


def test_3_all_that_failed_alike_runs_again(visit):
    """Beside something worse."""
    Queue.objects.create(name="payouts", recovery="ask")
    rows.processing(rows.just_died_worker(), queue_name="payouts")
    alike, other = [failed("Declined") for _ in range(14)], failed("Timeout")
    operator = Operator(visit, "Operators")
    operator.click(line(operator, "failed 14 times: Declined").locator("[data-action=requeue]"))
    operator.click("dialog[open] button[data-action=requeue]")
    expect(operator.is_told("has started")).to_have_text(re.compile(r"Bulk run \d+"))
    operator.is_back()
    bulk.carry_out(BulkRun.objects.get().pk)
    assert {status(task) for task in alike} == {"READY"}
    assert status(other) == "FAILED"
    operator.has_spent(clicks=2)


def test_4_it_is_found_why_a_task_waits(visit):
    Queue.objects.create(name="mail", paused=True, paused_by="anna")
    task = rows.ready(queue_name="mail")
    operator = Operator(visit, "Viewers")
    operator.press("Control+k")
    operator.write(str(task.pk))
    expect(operator.page.locator("#palette [role=option]").first).to_contain_text(f"#{task.pk}")
    operator.press("Enter")
    expect(operator.page.locator(".task-title .verdict")).to_have_text("Paused")
    operator.has_spent(clicks=0, keys=2 + len(str(task.pk)))

    operator = Operator(visit, "Viewers")
    operator.click(queue_row(operator, "mail").get_by_role("link", name="Why not running?"))
    expect(operator.page.locator("#why-rows")).to_contain_text("Paused")
    operator.has_spent(clicks=1)
    assert status(task) == "READY"


def test_5_one_failed_task_runs_again(visit):
    one, other = failed("Declined", queue_name="cards"), failed("Declined", queue_name="cards")
    operator = Operator(visit, "Operators")
    operator.click(queue_row(operator, "cards").locator("a[href*='status=FAILED']"))
    operator.click(f"#task-{one.pk} [data-action=requeue]")
    operator.click("dialog[open] button[data-action=requeue]")
    operator.is_told(f"Run again: done for #{one.pk}.")
    assert (status(one), status(other)) == ("READY", "FAILED")
    operator.has_spent(clicks=3)


def test_6_a_task_is_found_by_its_id_and_by_its_argument(visit):
    task, _other = rows.completed(kwargs={"order": 4711}), rows.completed(kwargs={"order": 17})
    operator = Operator(visit, "Viewers")
    operator.press("Control+k")
    operator.write(f"#{task.pk}")
    expect(operator.page.locator("#palette [role=option]").first).to_contain_text(f"#{task.pk}")
    operator.press("Enter")
    operator.page.wait_for_url(f"**/admin/tasks/task/{task.pk}/")
    operator.has_spent(clicks=0, keys=3 + len(str(task.pk)))

    operator = Operator(visit, "Viewers")
    operator.press("g", "t")
    operator.page.wait_for_url("**/admin/tasks/task/")  # and until its scripts hear keys
    operator.press("/")
    operator.write("4711")
    operator.press("Enter")
    operator.page.wait_for_url("**q=4711**")
    assert operator.page.locator("#task-rows tbody tr[id]").evaluate_all("all => all.map((row) => row.id)") == [
        f"task-{task.pk}"
    ]
    operator.has_spent(clicks=0, keys=8)


def test_7_a_queue_is_paused(visit):
    rows.ready(queue_name="mail")
    operator = Operator(visit, "Operators")
    operator.menu(queue_row(operator, "mail"))
    operator.click(queue_row(operator, "mail").locator("[data-action=pause]"))
    operator.is_told("Pause")
    operator.is_back()
    assert Queue.objects.get(name="mail").paused
    operator.has_spent(clicks=2)


def test_8_a_worker_is_asked_to_stop(visit):
    with rows.living_worker("w1"):
        operator = Operator(visit, "Operators")
        operator.click(operator.page.locator("nav.pages").get_by_role("link", name="Workers"))
        operator.click(operator.page.locator("#worker-rows tr", has_text="w1").locator("[data-action=stop-worker]"))
        operator.click("dialog[open] [data-action=stop-worker]")
        operator.is_told("Worker w1 is asked to finish")
        assert Worker.objects.get(pk="w1").stop_requested_at is not None
    operator.has_spent(clicks=3)


def test_9_a_named_lock_whose_holder_is_gone_is_released(visit):
    ended = timezone.now() - timedelta(hours=1)
    Lock.objects.create(
        name="nightly",
        owner="gone",
        fence=7,
        acquired_at=ended - timedelta(hours=1),
        renewed_at=ended,
        expires_at=ended,
    )
    operator = Operator(visit, "Lock administrators")
    operator.click(line(operator, "nightly").locator("[data-action=release-lock]"))
    expect(operator.page.locator("dialog [name=reason]")).to_be_focused()
    operator.write("killed")
    operator.press("Enter")
    operator.is_told("The lock nightly is free.")
    operator.is_back()
    assert Lock.objects.get(name="nightly").owner in (None, "")
    assert Intervention.objects.get().reason == "killed"
    operator.has_spent(clicks=1, keys=7)


def test_10_an_email_of_unknown_fate_is_resolved(visit):
    [order] = orders.shipped(1, email_state="unknown", email_since=timezone.now())
    operator = Operator(visit, "Operators")
    operator.click(line(operator, "may or may not have been sent").get_by_role("link", name="Resolve"))
    operator.click("#result_list [data-action=resolve-email]")
    expect(operator.page.locator("dialog [name=reason]")).to_be_focused()
    operator.write("in log")
    operator.click("dialog button[value=sent]")
    operator.is_told("1 e-mail resolved.")
    assert Order.objects.get(pk=order.pk).email_state == "sent"
    operator.has_spent(clicks=3, keys=6)
