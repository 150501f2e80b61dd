"""Every button of every page is pressed; a button that is added to a template fails this until it is.

One walk through the site, page by page. What each button does in every case is said by the other tests: here it must
do what it says once, on a page that is accessible, without an error on the console. Both themes show the same
documents: where one is used in light, dark must offer the same buttons.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from playwright.sync_api import expect

from dashboard import secrets
from dashboard.demo import control, director
from dashboard.models import Installation, LabRun
from orders.models import Account
from tasks.models import Attempt, BulkRun, CommandRun, ExpectedCommand, Lock, Queue, Schedule, Task, Worker
from tests.browser import buttons
from tests.browser.looks import SIZES
from tests.browser.tour import Tour
from tests.dashboard.scenes import LOCK_ACCOUNT, Scene
from tests.orders import orders
from tests.sessions import session
from tests.tasks import handlers, rows
from tests.tasks.claiming import claim
from tests.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
LIST, STALE, WORKERS = "/admin/tasks/task/", "/admin/ops/stale/", "/admin/ops/workers/"


@pytest.fixture(autouse=True)
def _allowed(settings, monkeypatch):
    """The lab and bursts; but no process is started on the tests' database."""
    settings.TEMPLATES = buttons.numbered(settings.TEMPLATES)
    settings.ROWLOCK_LAB = True
    settings.ROWLOCK = {**settings.ROWLOCK, "BURST": True}
    monkeypatch.setattr("dashboard.views.burst.burst.start", lambda asked: True)


def test_every_button_does_what_it_says(visit):
    visitor = visit("Operators", "Lock administrators", "Account managers")
    pressed = buttons.record(visitor.page)
    tour = Tour(visitor)
    for part in (
        one_task, tasks_of_a_list, all_that_match, a_stale_page, queues, limits, what_is_stuck, workers, enqueue, burst,
        locks, cron, attention, alerts, all_of_a_kind, orders_and_accounts, lab, fleet, demo, every_page,
    ):  # fmt: skip
        part(tour)
    assert sorted(buttons.all_buttons() - pressed) == []


def one_task(tour: Tour) -> None:
    task = rows.failed()
    Attempt.objects.create(
        task=task, number=5, worker_id="w", outcome="failed", exception_class="ValueError", traceback="x"
    )
    tour.at(f"{LIST}{task.pk}/").press(".failure [data-copy]").press(".value [data-copy]")
    tour.menu(".task-title").press("[role=menuitem][data-copy]").press("[data-action=quarantine]").confirm()
    tour.says(f"Quarantine: done for #{task.pk}.")
    Task.objects.filter(pk=task.pk).update(status="FAILED", finished_at=timezone.now(), queue_name="default")
    tour.at(f"{LIST}{task.pk}/").press(".actions [data-action=requeue]").confirm()
    tour.says(f"Run again: done for #{task.pk}.")
    Task.objects.filter(pk=task.pk).update(status="FAILED", finished_at=timezone.now())
    tour.at(f"{LIST}{task.pk}/").menu(".task-title").press("[data-kin=quarantine]").confirm()
    tour.says("What is done stays done.")
    Task.objects.filter(pk=task.pk).update(status="FAILED", finished_at=timezone.now(), queue_name="default")
    tour.at(f"{LIST}{task.pk}/").menu(".task-title").press("[data-action=cancel]").confirm()
    tour.says(f"Cancel: done for #{task.pk}.")
    BulkRun.objects.all().delete()
    old = rows.archived(task_path=handlers.log_in.module_path, args=["anna", "x"])
    tour.at(f"{LIST}archive/").named("Search", exact=True).look()
    tour.press(f"#archived-{old.pk} a").says("Archived:").look()
    tour.at(f"{LIST}{old.pk}/")
    tour.press("[data-action=run_again]").confirm().says("Enqueued as #")
    Task.objects.all().delete()


def tasks_of_a_list(tour: Tour) -> None:
    first, second = rows.failed(), rows.failed()
    tour.at(f"{LIST}?status=FAILED").press(f"#task-{first.pk} [data-action=requeue]").confirm()
    tour.says(f"Run again: done for #{first.pk}.")
    tour.page.get_by_label(f"Tick #{second.pk}").check()
    tour.menu(".bar").press(".bar [data-action=cancel]").confirm().says(f"Cancel: done for #{second.pk}.")
    tour.at(LIST).menu(f"#task-{second.pk}").press(f"#task-{second.pk} [data-copy]")
    tour.press(f"#task-{second.pk} summary").menu(f"#task-{first.pk}").press(f"#task-{first.pk} [data-action=edit]")
    tour.page.locator("dialog [name=priority]").fill("7")
    tour.confirm().says(f"Move: done for #{first.pk}.")
    tour.at(LIST).page.locator("[data-search]").fill("nothing-has-this")
    tour.named("Search", exact=True).says("No task matches this search.")
    tour.press(".views summary").page.get_by_label("Name").fill("nothing")
    tour.named("Save view").press(".views summary").named("Delete the view nothing")


def all_that_match(tour: Tour) -> None:
    rows.failed(queue_name="mail")
    tour.at(f"{LIST}?queue=mail").press("input[name=seen]").press(".bar input[name=all]")
    tour.press(".bar [data-action=requeue]").confirm()
    tour.press("[data-action=stop-run]").says("Stopped")
    BulkRun.objects.all().delete()


def a_stale_page(tour: Tour) -> None:
    task = rows.failed()
    tour.at(f"{LIST}{task.pk}/")
    Task.objects.filter(pk=task.pk).update(priority=9)
    tour.press(".actions [data-action=requeue]").says("Changed since you looked")
    tour.look()
    tour.named("review again").confirm().says("done")
    conflict = [told for told in tour.visitor.complaints if "409 (Conflict)" in told]
    assert tour.visitor.complaints == conflict
    tour.visitor.complaints.clear()
    Task.objects.all().delete()


def queues(tour: Tour) -> None:
    Queue.objects.create(name="mail")
    tour.at("/admin/tasks/queue/")
    for action in ("pause", "resume"):
        tour.press(f"#queue-rows .step > [data-action={action}]").says("done")
    for action in ("ask", "automatic"):
        tour.press("#queue-rows .menu summary").press(f"#queue-rows .menu [data-action={action}]").confirm().says(
            "done"
        )
    tour.press("#queue-rows .menu summary").press("#queue-rows .menu [data-action=change-limit]").confirm().says("mail")
    tour.press("#queue-rows .menu summary").press("#queue-rows [data-copy]")
    tour.press("#queue-rows [data-copy*=max-running]").press("#queue-rows [data-copy*=objective]")
    tour.at(f"{LIST}why/mail/").menu(".page-title").press(".page-title [data-copy]")


def limits(tour: Tour) -> None:
    rows.ready(concurrency_key="bank")
    tour.at("/admin/ops/limits/").press("[data-action=pause]").says("The key bank is paused.")
    tour.press("[data-action=resume]").says("The key bank is resumed.")
    tour.press("#limit-rows [data-action=change-limit]").page.locator("dialog [name=max_running]").fill("3")
    tour.confirm().says("The limit of bank was changed.")
    tour.press("#limit-rows .menu summary").press("#limit-rows [data-copy]")
    tour.at("/admin/ops/limits/").named("Search", exact=True)
    Task.objects.all().delete()


def alerts(tour: Tour) -> None:
    User.objects.update(is_superuser=True)
    tour.at("/admin/ops/alerts/add/").page.get_by_label("Name").fill("ops")
    tour.page.get_by_label("Address").fill("http://127.0.0.1:9/pa55")
    tour.press("[data-action=save-channel]").says("The channel was saved.")
    tour.press("#channel-rows .menu summary").press("#channel-rows [data-copy]")
    tour.press("#channel-rows [data-action=test-channel]").says("did not take")
    tour.press("#channel-rows .menu summary").press("#channel-rows [data-action=delete-channel]")
    tour.confirm().says("The channel was deleted.")
    tour.at("/admin/ops/alerts/").press("#threshold-late_seconds [data-action=change-threshold]")
    tour.page.locator("dialog [name=value]").fill("10m")
    tour.confirm().says("The threshold was changed.")
    User.objects.update(is_superuser=False)


def what_is_stuck(tour: Tour) -> None:
    Queue.objects.create(name="payouts", recovery="ask")
    worker = rows.dead_worker()
    first, second, third = (rows.processing(worker, queue_name="payouts") for _ in range(3))
    tour.at(STALE).press(f"#stale-{first.pk} summary").press(f"#stale-{first.pk} [data-copy]")
    tour.press(f"#stale-{first.pk} [data-action=recover]").confirm().says(f"done for #{first.pk}")
    tour.page.get_by_label(f"Tick #{second.pk}").check()
    tour.press(".bar [data-action=recover]").confirm().says(f"done for #{second.pk}")
    tour.press("#take-all [data-action=recover]").confirm().says("1 task was taken back")
    assert Task.objects.get(pk=third.pk).status == "READY"
    Task.objects.all().delete()


@contextmanager
def hanging() -> Iterator[None]:
    """A worker that is on the first of its two tasks for long."""
    rows.ready(), rows.ready()
    with rows.living_worker("w1"):
        current = claim(worker_id="w1")[0]
        since = timezone.now() - timedelta(minutes=10)
        Worker.objects.filter(pk="w1").update(current_task_id=current.id, current_since=since)
        yield


def workers(tour: Tour) -> None:
    rows.processing(rows.dead_worker("w-gone"))
    with hanging():
        tour.at(WORKERS).press(".page-title summary").press(".page-title [data-copy]").page.keyboard.press("Escape")
        tour.press("tr:has([data-action=recover]) summary").press("#worker-rows [data-copy]")
        tour.press("[data-action=recover]").confirm().says("1 task was taken back")
        tour.at(WORKERS).press("tr:has([data-action=stop-worker]) summary").press("[data-action=stop-worker]")
        tour.press("dialog .back").press("[data-action=release-unstarted]").confirm().says("1 task was released.")
        tour.press("#worker-rows [data-action=stop-worker]").confirm()
        tour.says("Worker w1 is asked to finish")
    Task.objects.all().delete()


def enqueue(tour: Tour) -> None:
    tour.at(f"{LIST}enqueue/?task={handlers.add.module_path}").page.get_by_label("first (int)").fill("1")
    tour.page.get_by_label("second (int)").fill("2")
    tour.press("[data-action=check]").press("[role=status] [data-copy]")
    tour.press("[data-action=enqueue]").says("Enqueued as #")


def burst(tour: Tour) -> None:
    tour.at("/admin/ops/burst/").press("[data-action=run-burst]")
    expect(tour.page.locator("#burst-runs")).to_be_visible()


def locks(tour: Tour) -> None:
    account = Account.objects.create(owner=User.objects.create_user("owner"))
    with Scene() as scene:
        scene.holding("psql", LOCK_ACCOUNT, [account.pk])
        scene.holding("idle", "SELECT 1")
        scene.waiting("report", LOCK_ACCOUNT, [account.pk])
        for name, action in (("idle", "terminate"), ("report", "cancel"), ("psql", "terminate")):
            if name == "psql":  # the root of a tree again
                scene.waiting("another", LOCK_ACCOUNT, [account.pk])
            node = f"#node-{scene.pid(name)}"
            tour.at("/admin/ops/locks/").press(".page-title .menu summary").press(".page-title [data-copy]")
            tour.page.keyboard.press("Escape")
            tour.press(f"{node} > .node .menu summary").press(f"{node} > .node [data-copy]")
            if name == "psql":
                tour.page.keyboard.press("Escape")
            tour.press(f"{node} > .node [data-action={action}-backend]")
            tour.confirm().says(f"Backend {scene.pid(name)} was signalled.")
    tour.at("/admin/ops/locks/history/").named("Look it up").says("No sample of that time shows a session")
    tour.named("Show this moment").says("No sample of that time shows a session")


def cron(tour: Tour) -> None:
    schedules(tour)
    now = timezone.now()
    ExpectedCommand.objects.create(name="nightly", every=timedelta(hours=1), since=now - timedelta(days=2))
    times = {"acquired_at": now - timedelta(hours=2), "renewed_at": now - timedelta(hours=2)}
    Lock.objects.create(name="nightly", owner="x", fence=7, expires_at=now - timedelta(hours=1), **times)
    tour.at("/admin/ops/schedule/").press("#lock-rows summary").press("#lock-rows [data-copy]")
    tour.press("[data-action=release-lock]").confirm().says("The lock nightly is free.")
    tour.press("#schedule-rows summary").press("#schedule-rows [data-copy]")
    tour.press("[data-action=forget-command]").confirm().says("Monitoring of nightly has stopped.")
    assert not ExpectedCommand.objects.exists()
    run = CommandRun.objects.create(name="nightly", argv=["report"], outcome="succeeded", finished_at=now)
    tour.at(f"/admin/ops/schedule/{run.pk}/").press("[data-copy]")


def schedules(tour: Tour) -> None:
    page, table = "/admin/ops/schedule/", "#schedules tbody"
    tour.at(page).menu(".offers").press(".offers [data-copy]").press("[data-action=switch-on]")
    tour.says("check-accounts is switched on")
    Schedule.objects.all().delete()
    when = {"cron": "0 3 * * *", "every_seconds": None, "timezone": "UTC", "missed": "skip", "overlap": "skip"}
    declared = {**when, "cron": "0 4 * * *"}
    path = handlers.nothing.module_path
    Schedule.objects.create(name=path, task_path=path, declared=declared, **when)
    tour.at(page).press("[data-action=pause-schedule]").says("is paused.")
    tour.menu(table).press(f"{table} [data-copy] >> nth=1").press("[data-action=resume-schedule]").says("runs again.")
    tour.menu(table).press(f"{table} [data-copy] >> nth=0").press(f"{table} [data-copy] >> nth=1")
    tour.press("[data-action=run-schedule]").confirm().says("was enqueued as")
    tour.menu(table).press("[data-action=revert-schedule]").confirm().says("as declared in code again")
    tour.at(f"{page}edit/?schedule={path}").press("[data-action=check-schedule]").says("Nothing would change.")
    Schedule.objects.update(**when)
    tour.at(f"{page}edit/?schedule={path}").press("[data-action=revert-schedule]").press("dialog .back")
    tour.press("[data-action=save-schedule]").says("is saved.")
    Schedule.objects.update(declared=None)
    tour.at(page).menu(table).press("[data-action=delete-schedule]").confirm().says("is deleted.")
    tour.at(page).press(".finder button").says("No schedule yet.")


def attention(tour: Tour) -> None:
    Attempt.objects.create(
        task=rows.failed(), number=5, worker_id="w", outcome="failed", exception_class="ValueError", traceback="x"
    )
    tour.at("/admin/").press("#attention-lines [data-action=requeue]").press("dialog .back")
    tour.press("#attention-lines .menu summary").press("#attention-lines [data-copy]")
    tour.press("a[data-action=acknowledge]").confirm("the bank knows").says("1 acknowledged")
    tour.press("#known > summary").press("#known .menu summary").press("#known [data-copy]")
    tour.press("[data-action=withdraw]")
    expect(tour.page.locator("#known")).to_have_count(0)
    tour.page.get_by_label("From, UTC").fill(f"{timezone.now() - timedelta(hours=1):%Y-%m-%dT%H:%M}")
    tour.press("form.chosen button").says("Throughput and latency")


def all_of_a_kind(tour: Tour) -> None:
    old = {"number": 5, "worker_id": "w", "outcome": "failed", "exception_class": "ValueError"}
    Attempt.objects.create(task=rows.failed(), fingerprint="aaaaaaaaaaaa app/tasks.py:charge", **old)
    page = "/admin/ops/failures/"
    tour.at(page).named("Search", exact=True).press("#failure-kinds .menu summary").press("[data-copy]:visible")
    tour.at(page).press("#failure-kinds .menu summary").press("[data-action=acknowledge]").confirm("the bank knows")
    tour.at(page).says("acknowledged by")
    tour.press("#failure-kinds .menu summary").press("[data-action=quarantine]").confirm()
    tour.page.wait_for_url("**/runs/**")
    tour.at(f"{page}aaaaaaaaaaaa/").press("[data-action=requeue]").confirm()
    tour.page.wait_for_url("**/runs/**")
    BulkRun.objects.all().delete()


def orders_and_accounts(tour: Tour) -> None:
    orders.shipped(1)
    for decision in ("resend", "sent"):
        [order] = orders.shipped(1, email_state="unknown", email_since=timezone.now())
        tour.at(f"/admin/orders/order/{order.pk}/change/").page.get_by_label("Reason").fill("found in the log")
        tour.press(f"[data-action=resolve-email][value={decision}]").says("1 e-mail resolved.")
    orders.shipped(1, email_state="unknown", email_since=timezone.now())
    tour.at("/admin/orders/order/").press("#result_list [data-action=resolve-email]")
    tour.confirm(button="dialog [data-action=resolve-email]").says("1 e-mail resolved.")
    tour.at("/admin/orders/order/").press("#action-toggle").press("#changelist-form .actions button")
    tour.says("None of these orders has an e-mail that may have been sent.")
    tour.at("/admin/orders/order/").press(".page-title .menu summary").press(".page-title [data-copy]")
    tour.page.keyboard.press("Escape")
    tour.press("[data-action=ship-emails]").press("dialog [data-action=ship-emails]")
    expect(tour.page.locator("#pattern-progress")).to_be_visible()
    account = Account.objects.create(owner=User.objects.create_user("saver"))
    tour.at(f"/admin/orders/account/{account.pk}/change/").page.get_by_label("Deposit").check()
    tour.page.locator("#id_amount").fill("12.50")
    tour.press("[data-action=move-money]").says("12.50")
    account.refresh_from_db()
    assert account.balance


def lab(tour: Tour) -> None:
    tour.at("/admin/ops/lab/?preset=cron").press("[data-action=run-pattern]").says("Waits for its turn")
    run = LabRun.objects.latest("pk")
    tour.at(f"/admin/ops/lab/{run.pk}/").press("[data-action=stop-pattern]").says("is asked to end")
    tour.at("/admin/ops/lab/").page.locator("#lab-result input[type=checkbox]").first.check()
    tour.named("Compare those ticked")
    tour.page.wait_for_url("**/lab/compare/**")
    tour.at("/admin/ops/lab/").press("[data-action=kill-drill]")
    tour.page.wait_for_url(f"**/lab/{LabRun.objects.latest('pk').pk}/")


def fleet(tour: Tour) -> None:
    """Of one installation, where nobody answers."""
    shop = Installation.objects.create(name="shop", url="http://127.0.0.1:9", token=secrets.seal("t"))
    tour.at("/admin/ops/fleet/").page.locator("[data-search-box]").fill("4711")
    tour.named("Search", exact=True).page.wait_for_url("**q=4711**")
    shop.delete()


def demo(tour: Tour) -> None:
    """Asked of a session that is its director as far as anybody can see, and that ends before all is removed."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("ROWLOCK_DEMO", "1")
        director.load_once()
        with session("rowlock:demo:director", autocommit=True) as conn:
            wait_until(lambda: conn.execute(control.TAKE).fetchone()[0])
            tour.at("/admin/ops/demo/").press("aside summary")
            tour.press("aside [data-copy*=kill]").press("aside [data-copy*=stop]").press("aside [data-copy*=remove]")
            for button in ("aside [data-action=demo-kill]", ".demo-kill button", "[data-action=demo-chain]"):
                tour.at("/admin/ops/demo/").press(button)
                expect(tour.page.locator(".messagelist")).to_be_visible()
            tour.at("/admin/ops/demo/").press("[data-action=demo-stop]")
            expect(tour.page.locator(".messagelist")).to_be_visible()
        tour.at("/admin/ops/demo/").press("aside summary").press("aside [data-copy*=direct_demo]")
        tour.at("/admin/ops/demo/remove/").confirm().says("Removed:")


def every_page(tour: Tour) -> None:
    """What stands in the frame of the pages."""
    tour.at("/admin/ops/audit/").named("Search", exact=True)
    tour.page.wait_for_url("**/audit/?**")
    tour.at(STALE).press("[data-live-pause]").press("[data-live-pause]").press("[data-shortcuts]").press("[data-close]")
    for action in ("markdown", "print"):
        tour.at(STALE).press("[data-shortcuts]").press(f"#shortcuts [data-page-action={action}]")
    tour.at(STALE).press("[data-palette]").page.keyboard.press("Escape")
    tour.page.set_viewport_size(SIZES["narrow"])
    tour.press(".fold").page.keyboard.press("Escape")
    tour.page.set_viewport_size(SIZES["wide"])
    tour.named("Русский").page.wait_for_selector("html[lang=ru]")
