"""Each page in both themes, wide and narrow: accessible, within the screen, and nothing from elsewhere or inline."""

import re
from datetime import timedelta
from decimal import Decimal
from urllib.parse import urlsplit

import pytest
from django.contrib.auth.models import User
from django.urls import resolve
from django.utils import timezone

from orders import accounts
from orders.models import Account
from tasks.models import Attempt, BulkRun, CommandRun, ExpectedCommand, Lock, Queue, RefusedWrite, Schedule
from tests.browser.looks import assert_looks_right
from tests.dashboard.addresses import walk
from tests.tasks import handlers, rows

pytestmark = pytest.mark.browser

LIST = "/admin/tasks/task/"
# No pages, or pages behind a button: `test_every_button.py`; of lab, orders, demo and alerts: their own modules.
ELSEWHERE = {
    "autocomplete", "index", "jsi18n", "login", "logout", "password_change_done", "set_language", "view_on_site",
    "ops_acknowledge", "ops_charts", "ops_demo", "ops_demo_ask", "ops_demo_remove", "ops_forget", "ops_lab_drill",
    "ops_lab_run", "ops_lab_start", "ops_lab_stop", "ops_limit_set", "ops_limit_switch", "ops_palette",
    "ops_release", "ops_release_unstarted", "ops_signal", "ops_alerts", "ops_threshold",
    "ops_channel", "ops_channel_test",
    "ops_stop_worker", "ops_take_back", "ops_withdraw", "orders_account_lock", "orders_account_move",
    "orders_order_lock", "orders_order_resolve", "orders_order_run", "orders_order_watch", "tasks_queue_switch",
    "ops_schedule_act", "ops_schedule_line", "ops_schedule_switch_on", "ops_schedule_times",
    "tasks_task_action", "tasks_task_again", "tasks_task_all", "tasks_task_delete_view", "tasks_task_run_stop",
    "tasks_task_save_view",
}  # fmt: skip
# Django's own forms and lists, which only the menu of all models leads to.
STOCK = re.compile(
    "(auth|dashboard_(installation|apitoken))_.*|tasks_(attempt|intervention|refusedwrite|worker)_.*"
    "|.*_(add|change|delete|history)"
)


@pytest.fixture
def failed(db):
    """A task with something in every part of its page."""
    task = rows.failed(kwargs={"order": 4711, "token": "t"}, ordering_key="anna")
    Attempt.objects.create(
        task=task,
        number=5,
        worker_id="w7f",
        outcome="failed",
        exception_class="ValueError",
        traceback="line 1\nline 2",
        fingerprint=f"aaaaaaaaaaaa {'long/' * 30}tasks.py:charge",
        release="2026.11.3-" + "x" * 90,
        queue_name="q" * 120,
    )
    RefusedWrite.objects.create(
        task_id=task.pk, worker_id="w7f", expected_version=2, actual_version=3, intent="complete"
    )
    return task


@pytest.fixture
def addresses(failed) -> dict[str, str]:
    """The pages, with tasks in every state on the list."""
    Queue.objects.create(name="mail", paused=True, paused_by="anna")
    rows.ready(), rows.ready(queue_name="mail"), rows.ready(ordering_key="key"), rows.ready(ordering_key="key")
    rows.archived(task_path="app." + "long" * 60), rows.completed(), rows.cancelled(), rows.processing("w-gone")
    rows.processing("w-gone", concurrency_key="l" * 255, slot=1), rows.ready(concurrency_key="l" * 255)
    rows.ready(task_path="app." + "long" * 60, queue_name="q" * 120, ordering_key="k" * 255)
    return {
        "list": LIST,
        "detail": f"{LIST}{failed.pk}/",
        "filtered": f"{LIST}?status=FAILED&queue=default",
        "archive": f"{LIST}archive/",
        "why": f"{LIST}why/{'q' * 120}/",
        "enqueue": f"{LIST}enqueue/",
        "enqueue a function": f"{LIST}enqueue/?task={handlers.typed.module_path}",
        "bulk run": f"{LIST}runs/{bulk_run().pk}/",
        "bulk runs": f"{LIST}runs/",
        "burst": "/admin/ops/burst/",
        "queues": "/admin/tasks/queue/",
        "workers": "/admin/tasks/worker/",
        "locks": "/admin/ops/locks/",
        "lock history": "/admin/ops/locks/history/",
        "stuck": "/admin/ops/stale/",
        "living workers": "/admin/ops/workers/",
        "audit": "/admin/ops/audit/",
        "failures": "/admin/ops/failures/",
        "failure": "/admin/ops/failures/aaaaaaaaaaaa/",
        "fleet": "/admin/ops/fleet/",
        "limits": "/admin/ops/limits/",
        "schedule": "/admin/ops/schedule/",
        "choose a task to schedule": "/admin/ops/schedule/add/",
        "add a schedule": f"/admin/ops/schedule/add/?task={handlers.typed.module_path}",
        "edit a schedule": f"/admin/ops/schedule/edit/?schedule={schedule()}",
        "command run": f"/admin/ops/schedule/{command_run().pk}/",
        "orders": "/admin/orders/order/",
        "accounts": "/admin/orders/account/",
        "account": f"/admin/orders/account/{account().pk}/change/",
        "overview": "/admin/",
        "acknowledge": "/admin/ops/attention/?line=failed:aaaaaaaaaaaa",
        "lab": "/admin/ops/lab/",
        "lab patterns": "/admin/ops/lab/patterns/",
        "lab compare": "/admin/ops/lab/compare/?run=1",
        "models": "/admin/all/",
        "models of an app": "/admin/tasks/",
        "reference of the API": "/api/v1/docs/",
    }


def bulk_run() -> BulkRun:
    """A run that is under way and has refused some."""
    return BulkRun.objects.create(
        action="quarantine", options={}, filter=f"task={'x' * 200}", upto=9, actor="anna", total=9, looked=5, done=4,
        refused=1, refusals={"held": {"number": 1, "ids": [1], "sentence": "worker w1 holds it"}},
    )  # fmt: skip


def command_run() -> CommandRun:
    """A run of an overdue command, whose lock somebody holds under a long name."""
    ExpectedCommand.objects.create(name="nightly-report", every=timedelta(hours=1), since=timezone.now() - timedelta(2))
    Lock.objects.create(
        name="nightly-report", owner="o" * 60, fence=7, hostname="db1." + "host" * 30, pid=99,
        acquired_at=timezone.now(), renewed_at=timezone.now(), expires_at=timezone.now() + timedelta(hours=1),
    )  # fmt: skip
    run = {"name": "nightly-report", "argv": ["report", "x" * 200], "finished_at": timezone.now()}
    CommandRun.objects.create(**run, outcome="skipped", exit_status=75, held_by="db1")
    return CommandRun.objects.create(**run, outcome="failed", exit_status=1, output="y" * 300)


def schedule() -> str:
    """The name of a declared schedule that an operator overrode, beside one that is late and one that is broken off."""
    now = timezone.now()
    declared = {"cron": "0 3 * * *", "every_seconds": None, "timezone": "UTC", "missed": "skip", "overlap": "skip"}
    paths = {"task_path": handlers.typed.module_path, "timezone": "Europe/Berlin"}
    Schedule.objects.create(name="late." + "long" * 40, cron="30 2 * * *", next_at=now - timedelta(hours=2), **paths)
    Schedule.objects.create(name="gone", cron="30 2 * * *", paused=True, problem="Its code is gone.", **paths)
    Schedule.objects.create(name="nightly", cron="30 2 * * *", next_at=now, declared=declared, **paths)
    return "nightly"


def account() -> Account:
    account = Account.objects.create(owner=User.objects.create_user("owner"))
    accounts.deposit(account.pk, Decimal(100))
    return account


def test_every_page_of_the_site_is_looked_at(addresses):
    looked = {resolve(urlsplit(address).path).url_name for address in addresses.values()}
    pages = {name for route, name in walk() if route.startswith("admin/") and name != route}
    pages = {name for name in pages if not STOCK.fullmatch(name)}
    assert sorted(pages - looked - ELSEWHERE) == []
    assert sorted(ELSEWHERE - pages) == []


def test_every_page_is_accessible_and_fits(visit, addresses):
    visitor = visit("Operators", "Account managers")
    for address in addresses.values():
        assert_looks_right(visitor.open(address))
    assert all(url.startswith((visitor.base, "data:")) for url in visitor.requests)


def test_the_login_is_accessible_and_lets_in(visit, django_user_model):
    django_user_model.objects.create_superuser("admin", password="correct horse")
    page = visit().open(LIST)
    assert_looks_right(page)
    assert page.get_by_role("heading", level=1).inner_text() == "Log in"
    page.get_by_label("Username").fill("admin")
    page.get_by_label("Password").fill("correct horse")
    page.get_by_role("button", name="Log in").click()
    page.wait_for_selector("#task-rows")


def test_the_form_of_the_password_is_accessible(visit, db):
    assert_looks_right(visit("Viewers").open("/admin/password_change/"))


def test_the_preview_is_accessible(visit, failed):
    page = visit("Operators", "Account managers").open(f"{LIST}{failed.pk}/")
    page.locator(".task-title .menu summary").click()
    page.locator("button[data-action=cancel]").click()
    page.wait_for_selector("form.confirm")
    assert_looks_right(page)


def test_a_viewer_sees_why_buttons_are_off(visit, failed):
    page = visit("Viewers").open(f"{LIST}{failed.pk}/")
    button = page.locator("button[data-action=requeue]")
    assert button.is_disabled()
    assert "tasks.requeue_task" in page.locator(f"#{button.get_attribute('aria-describedby')}").inner_text()
    assert_looks_right(page)


def test_links_in_text_are_told_apart_by_more_than_colour(visit, failed):
    page = visit("Viewers").open(LIST)
    link = page.locator("#task-rows a").first
    assert "underline" in link.evaluate("element => getComputedStyle(element).textDecorationLine")


def test_rows_are_cards_on_a_phone(visit, failed):
    row = visit("Viewers", size="narrow").open(LIST).locator("#task-rows tbody tr").first
    assert row.evaluate("element => getComputedStyle(element).display") == "block"


def test_the_policy_allows_nothing_inline_and_nothing_from_elsewhere(visit, failed):
    visitor = visit("Viewers")
    policy = visitor.page.goto(visitor.base + LIST).headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
