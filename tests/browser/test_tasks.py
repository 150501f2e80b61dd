"""An operator at work in a real browser: see why, press, confirm, and read what happened."""

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from tasks.models import Attempt, AttemptLog, Intervention, Progress, Queue, RefusedWrite, Task, Worker
from tests.browser.looks import assert_accessible
from tests.people import client_of
from tests.sessions import session
from tests.tasks import rows
from tests.waiting import wait_until

pytestmark = pytest.mark.browser

LIST = "/admin/tasks/task/"
HOSTILE = "<img src=x onerror=\"window.hacked='yes'\">'\"</script><script>window.hacked='yes'</script>{{ 7|add:7 }}"
REFUSED = "Failed to load resource: the server responded with a status of 409 (Conflict)"


def message(page) -> str:
    return page.locator(".messagelist").inner_text()


def test_a_failed_task_is_run_again_from_its_row(visit):
    task = rows.failed()
    page = visit("Operators").open(f"{LIST}?status=FAILED")
    page.locator(f"#task-{task.pk} button[data-action=requeue]").click()
    page.get_by_role("textbox", name="Reason").fill("the card works again")
    page.locator("form.confirm button[data-action=requeue]").click()
    assert message(page) == f"Run again: done for #{task.pk}."
    assert page.url.endswith("?status=FAILED")
    assert Task.objects.get().status == "READY"
    assert Intervention.objects.get().reason == "the card works again"


def test_long_arguments_are_scrolled_by_the_keyboard(visit):
    task = rows.completed(args=[["line"] * 200], kwargs={"order": ["line"] * 200}, return_value=["line"] * 200)
    page = visit("Viewers").open(f"{LIST}{task.pk}/")
    for name in ("Arguments", "Keyword arguments", "Return value"):
        page.locator(".value", has=page.get_by_text(name, exact=True)).locator("summary").press("Enter")
        box = page.get_by_role("region", name=name, exact=True)
        box.focus()
        page.keyboard.press("End")
        wait_until(lambda box=box: box.evaluate("box => box.scrollTop") > 0)
    assert_accessible(page)


def test_the_ticked_tasks_are_cancelled(visit):
    tasks = [rows.ready() for _ in range(3)]
    page = visit("Operators").open(LIST)
    page.get_by_label(f"Tick #{tasks[0].pk}").check()
    page.get_by_label(f"Tick #{tasks[2].pk}").check()
    assert page.locator("[data-ticked]").inner_text().endswith("2")
    page.locator(".bar .menu summary").click()
    page.locator(".bar button[data-action=cancel]").click()
    page.get_by_role("textbox", name="Reason").fill("sent twice")
    page.locator("form.confirm button[data-action=cancel]").click()
    assert message(page) == f"Cancel: done for #{tasks[0].pk}, #{tasks[2].pk}."
    assert [Task.objects.get(pk=task.pk).status for task in tasks] == ["CANCELLED", "READY", "CANCELLED"]


def test_a_reason_is_asked_for_before_the_server_does(visit):
    task = rows.ready()
    page = visit("Operators").open(f"{LIST}{task.pk}/")
    page.locator(".task-title .menu summary").click()
    page.locator("button[data-action=cancel]").click()
    page.locator("form.confirm button[data-action=cancel]").click()
    assert page.get_by_role("textbox", name="Reason").evaluate("element => element.validity.valueMissing")
    assert Task.objects.get().status == "READY"


def test_one_box_ticks_the_whole_page(visit):
    rows.many(3)
    page = visit("Operators").open(LIST)
    page.get_by_label("Tick every task on this page").check()
    assert page.locator("input[name=seen]:checked").count() == 3
    page.locator("input[name=seen]").first.uncheck()
    assert page.locator("[data-tick-all]").evaluate("element => element.indeterminate")


def test_a_dead_workers_task_is_taken_back(visit):
    Queue.objects.create(name="default", recovery="ask")
    task = rows.processing(rows.dead_worker())
    page = visit("Operators").open(LIST)
    row = page.locator(f"#task-{task.pk}")
    assert "Worker dead" in row.inner_text()
    assert "is manual" in row.inner_text()
    row.locator("button[data-action=recover]").click()
    page.locator("form.confirm button[data-action=recover]").click()
    assert message(page) == f"Take back: done for #{task.pk}."
    assert Task.objects.get().status == "READY"


def test_a_page_that_has_become_stale_says_what_changed(visit):
    task = rows.failed()
    visitor = visit("Operators")
    page = visitor.open(f"{LIST}{task.pk}/")
    Task.objects.update(priority=9)
    page.locator("button[data-action=requeue]").click()
    assert "priority 0 9" in page.locator("#changed").inner_text()
    page.get_by_role("button", name="review again").click()
    page.locator("dialog .happens").wait_for()
    page.locator("form.confirm button[data-action=requeue]").click()
    assert "done" in message(page)
    assert visitor.complaints == [REFUSED]
    visitor.complaints.clear()


def test_a_double_click_does_one_thing(visit):
    task = rows.failed()
    page = visit("Operators").open(f"{LIST}{task.pk}/")
    page.locator("button[data-action=requeue]").click()
    page.locator("form.confirm button[data-action=requeue]").dblclick()
    assert message(page) == f"Run again: done for #{task.pk}."
    assert Intervention.objects.count() == 1


def test_a_second_click_while_the_answer_is_awaited_sends_nothing(visit):
    task = rows.failed()
    visitor = visit("Operators")
    page = visitor.open(f"{LIST}{task.pk}/")
    page.locator("button[data-action=requeue]").click()
    button = page.locator("form.confirm button[data-action=requeue]").bounding_box()
    with session() as other:
        other.execute("LOCK TABLE tasks_task IN EXCLUSIVE MODE")
        with page.expect_request("**/do/requeue/"):
            page.mouse.click(button["x"] + 5, button["y"] + 5)
        page.mouse.click(button["x"] + 5, button["y"] + 5)
    assert message(page) == f"Run again: done for #{task.pk}."
    assert [url.endswith("/do/requeue/") for url in visitor.requests].count(True) == 2


def test_a_locked_row_is_told_on_the_list_and_when_pressed(visit):
    task = rows.failed()
    with session("psql") as other:
        other.execute(f"SELECT FROM tasks_task WHERE id = {task.pk} FOR UPDATE")
        page = visit("Operators").open(f"{LIST}{task.pk}/")
        assert f"Held by pid {other.info.backend_pid} (psql)" in page.locator(".holder").inner_text()
        page.locator("button[data-action=requeue]").click()
        page.locator("form.confirm button[data-action=requeue]").click()
        assert f"#{task.pk} not changed: locked by pid {other.info.backend_pid} (psql)" in message(page)


def test_a_queue_is_paused(visit):
    task = rows.ready()
    visitor = visit("Operators")
    page = visitor.open("/admin/tasks/queue/")
    page.locator("button[data-action=pause]").click()
    assert "Pause: done" in message(page)
    assert "Paused" in visitor.open(LIST).locator(f"#task-{task.pk} .verdict").first.inner_text()


def test_a_command_is_copied(visit):
    task = rows.failed()
    page = visit("Operators", permissions=["clipboard-read", "clipboard-write"]).open(f"{LIST}{task.pk}/")
    page.locator(".task-title .menu summary").click()
    page.get_by_role("menuitem", name=f"Copy the command python manage.py requeue_tasks {task.pk}").click()
    assert page.evaluate("navigator.clipboard.readText()") == f"python manage.py requeue_tasks {task.pk}"


def test_the_message_of_a_failure_stands_above_the_fold(visit):
    task = rows.failed()
    Attempt.objects.create(
        task=task, number=5, worker_id="w7f", outcome="failed", exception_class="shop.CardDeclined",
        traceback='  File "/srv/shop/tasks.py", line 7, in pay\n    ask()\nshop.CardDeclined: no money',
    )  # fmt: skip
    page = visit("Operators").open(f"{LIST}{task.pk}/")
    box = page.locator(".failure .message").bounding_box()
    assert page.locator(".failure .message").inner_text() == "CardDeclined: no money"
    assert box["y"] + box["height"] < 300
    assert_accessible(page)


def test_a_list_shows_eighteen_rows_and_a_failure_runs_again_with_two_clicks(visit):
    rows.many(20)
    task = rows.failed()
    page = visit("Operators").open(LIST)
    ends = page.locator("#task-rows tbody tr").nth(17).evaluate("row => row.getBoundingClientRect().bottom")
    assert ends + 50 <= 900  # the demo's ribbon takes so much
    page.locator(f"#task-{task.pk} button[data-action=requeue]").click()
    page.locator("dialog button[data-action=requeue]").click()
    assert message(page) == f"Run again: done for #{task.pk}."
    page.locator(".messagelist a").click()
    page.wait_for_url(f"**{LIST}{task.pk}/")


def test_a_row_that_changes_while_its_question_is_open_is_told_in_the_dialog(visit):
    task = rows.failed()
    visitor = visit("Operators")
    page = visitor.open(LIST)
    page.locator(f"#task-{task.pk} button[data-action=requeue]").click()
    confirm = page.locator("dialog form.confirm button[data-action=requeue]")
    confirm.wait_for()
    Task.objects.update(priority=9)
    confirm.click()
    assert "priority 0 9" in page.locator("dialog #changed").inner_text()
    page.locator("dialog").get_by_role("button", name="review again").click()
    page.locator("dialog .happens").wait_for()
    confirm.click()
    assert message(page) == f"Run again: done for #{task.pk}."
    assert visitor.complaints == [REFUSED]
    visitor.complaints.clear()


def test_a_failure_runs_again_without_a_script(visit):
    task = rows.failed()
    page = visit("Operators", java_script_enabled=False).open(f"{LIST}{task.pk}/")
    page.locator("button[data-action=requeue]").click()
    page.locator("form.confirm button[data-action=requeue]").click()
    assert message(page) == f"Run again: done for #{task.pk}."


def test_the_menu_of_a_task_is_used_by_keyboard(visit):
    task = rows.failed()
    page = visit("Operators").open(f"{LIST}{task.pk}/")
    page.locator(".task-title .menu summary").press("Enter")
    expect(page.locator("[data-action=quarantine]:focus")).to_have_count(1)
    page.keyboard.press("Enter")
    page.locator("dialog form.confirm").wait_for()
    page.keyboard.press("Escape")
    expect(page.locator(".task-title summary")).to_be_focused()


def test_the_log_is_a_tail_that_the_keyboard_scrolls(visit):
    def log(*messages: str, level: str = "INFO") -> None:
        for message in messages:
            AttemptLog.objects.create(task_id=task.pk, number=1, at=timezone.now(), level=level, message=message)

    with rows.living_worker() as worker:
        task = rows.processing(worker)
        Progress.objects.create(task_id=task.pk, attempt=1, fraction=0.45, message="row 9")
        log(*(f"line {number}" for number in range(60)))
        log("it broke", level="ERROR")
        page = visit("Viewers").open(f"{LIST}{task.pk}/")
        expect(page.get_by_role("progressbar", name="45 %")).to_be_visible()
        assert_accessible(page)
        box = page.get_by_role("region", name="Log")
        expect(box.get_by_text("it broke")).to_be_in_viewport()
        expect(box.get_by_text("line 0", exact=True)).not_to_be_in_viewport()
        box.focus()
        log("it goes on")
        Progress.objects.filter(pk=task.pk).update(fraction=0.5)
        expect(box.get_by_text("it goes on")).to_be_in_viewport()  # while the box is in focus
        expect(page.get_by_role("progressbar", name="50 %")).to_be_visible()
        expect(box).to_be_focused()
        page.keyboard.press("Home")
        expect(box.get_by_text("line 0", exact=True)).to_be_in_viewport()
        log("unseen")
        expect(box.get_by_text("unseen")).to_be_attached()
        expect(box.get_by_text("line 0", exact=True)).to_be_in_viewport()


def test_times_are_shown_in_the_readers_zone_too(visit):
    task = rows.failed(created_at="2026-01-05T00:12Z")
    page = visit("Viewers", timezone_id="Europe/Istanbul").open(f"{LIST}{task.pk}/")
    first = page.locator(".timeline time").first.inner_text()
    assert first.startswith("2026-01-05 00:12:00 UTC · ")
    assert "03:12:00 local" in first


def hostile_task() -> Task:
    """A task in which every text is an attack."""
    task = rows.failed(
        task_path=HOSTILE, queue_name=HOSTILE, ordering_key=HOSTILE, args=[HOSTILE], kwargs={HOSTILE: HOSTILE}
    )
    Attempt.objects.create(
        task=task, number=5, worker_id=HOSTILE, outcome="failed", exception_class=HOSTILE, traceback=HOSTILE
    )
    RefusedWrite.objects.create(task_id=task.pk, worker_id=HOSTILE, expected_version=1, intent=HOSTILE)
    AttemptLog.objects.create(task_id=task.pk, number=5, at=timezone.now(), level=HOSTILE, message=HOSTILE)
    Progress.objects.create(task_id=task.pk, attempt=5, state={HOSTILE: HOSTILE})
    Intervention.objects.create(actor=HOSTILE, source="page", action=HOSTILE, target=f"task:{task.pk}", reason=HOSTILE)
    Queue.objects.create(name=HOSTILE, paused=True, paused_by=HOSTILE)
    Worker.objects.create(id=HOSTILE, hostname=HOSTILE, pid=1, queues=[HOSTILE], stop_reason=HOSTILE)
    rows.ready(task_path=HOSTILE, queue_name=HOSTILE)
    rows.processing(HOSTILE, queue_name=HOSTILE, task_path=HOSTILE)
    return task


def test_no_stored_text_runs_as_a_script(visit):
    """Paths, queues, keys, arguments, errors, workers, audit, and the name of the session that holds the row."""
    task = hostile_task()
    visitor = visit("Operators")
    visitor.page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    with session(HOSTILE[:40]) as other:
        other.execute(f"SELECT FROM tasks_task WHERE id = {task.pk} FOR UPDATE")
        for address in (LIST, f"{LIST}{task.pk}/", "/admin/tasks/queue/", "/admin/tasks/worker/"):
            page = visitor.open(address)
            assert page.evaluate("window.hacked") is None
            assert page.locator("#content img[src=x]").count() == 0
            assert HOSTILE[:30] in page.locator("#content").inner_text()
        page = visitor.open(f"{LIST}{task.pk}/")
        assert f"({HOSTILE[:40]})" in page.locator(".holder").inner_text()
        page.locator("button[data-action=requeue]").click()
        page.wait_for_selector("form.confirm")
        page.get_by_role("textbox", name="Reason").fill(HOSTILE)
        page.locator("form.confirm button[data-action=requeue]").click()
        assert HOSTILE[:40] in message(page)
        assert page.evaluate("window.hacked") is None


def test_no_filter_in_the_address_runs_as_a_script(visit):
    visitor = visit("Viewers")
    for name in ("queue", "task", "q", "key", "worker", "error"):
        page = visitor.page
        page.goto(f"{visitor.base}{LIST}?{name}=" + HOSTILE.replace("#", "").replace("&", ""))
        assert page.evaluate("window.hacked") is None
        assert page.locator("#content img").count() == 0


def test_the_recorded_rows_are_shown_harmlessly(visit):
    hostile_task()
    visitor = visit("Viewers")
    for model in ("attempt", "refusedwrite", "intervention"):
        page = visitor.open(f"/admin/tasks/{model}/")
        assert page.evaluate("window.hacked") is None
        assert page.locator("#content img[src=x]").count() == 0


def test_a_page_left_open_answers_with_the_login_after_the_session_has_ended(visit):
    visitor = visit("Operators")
    task = rows.failed()
    page = visitor.open(f"{LIST}{task.pk}/")
    visitor.context.clear_cookies(name="sessionid")
    page.locator("button[data-action=requeue]").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Log in")


def test_roles_see_the_same_page_with_other_buttons(live_server):
    task = rows.failed()
    pages = {
        group: client_of(group, username=group).get(f"{LIST}{task.pk}/").text for group in ("Viewers", "Operators")
    }
    assert pages["Viewers"].count("disabled") == 5
    assert pages["Operators"].count("disabled") == 0
