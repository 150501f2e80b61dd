"""Actions on everything that matches: preview of the count, confirmation, the run and its progress, and stopping it."""

import re

import pytest
from django.test import Client

from dashboard.task_pages.actions import Seen
from tasks.models import BulkRun, Intervention, Task
from tasks.operations import bulk
from tests.html import hidden
from tests.people import client_of, person
from tests.sessions import session
from tests.tasks import handlers, rows

LIST = "/admin/tasks/task/"
ALL = f"{LIST}all/"

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator():
    return client_of("Operators")


def press(client: Client, action: str, query: str, **fields: str):
    return client.post(f"{ALL}{action}/", {"filter": query, "next": f"{LIST}?{query}", **fields})


def confirm(client: Client, action: str, query: str, **fields: str):
    page = press(client, action, query)
    return client.post(f"{ALL}{action}/", {**hidden(page.text), **fields}, follow=True)


def words(page) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page.text).split())


def test_the_preview_counts_by_status_shows_examples_and_the_command_and_changes_nothing(operator):
    for _ in range(3):
        rows.failed(queue_name="mail")
    rows.cancelled(queue_name="mail"), rows.completed(queue_name="mail"), rows.ready(queue_name="mail")
    newest = rows.failed(queue_name="mail")
    page = press(operator, "requeue", "queue=mail")
    text = words(page)
    assert page.status_code == 200
    assert "5 tasks match this filter" in text
    assert "FAILED 4" in text
    assert "CANCELLED 1" in text
    assert "READY 1" in text
    assert "COMPLETED 1" in text
    assert f"#{newest.pk}" in text
    assert "python manage.py requeue_tasks --status FAILED --status CANCELLED --status PROCESSING --queue mail" in text
    assert f'name="upto" value="{newest.pk}"' in page.text
    assert not BulkRun.objects.exists()
    assert not Intervention.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_the_preview_rehearses_and_tells_what_would_stay(operator):
    tasks = [rows.failed() for _ in range(8)]
    with session("psql") as other:
        other.execute(f"SELECT FROM tasks_task WHERE id < {tasks[2].pk} FOR UPDATE")
        text = words(press(operator, "requeue", "status=FAILED"))
        holder = f"locked by pid {other.info.backend_pid} (psql)"
    assert "Rehearsed on the newest 8; some of them would not change" in text
    assert holder in text
    assert Task.objects.failed().count() == 8


def test_confirmed_it_becomes_a_run_that_a_worker_carries_out(operator):
    task = rows.failed(queue_name="mail")
    page = confirm(operator, "requeue", "queue=mail&status=FAILED", reason="card works", spread_minutes="10")
    run = BulkRun.objects.get()
    assert page.redirect_chain[-1][0] == f"{LIST}runs/{run.pk}/"
    assert "No worker for queue" in page.text
    assert "python manage.py run_worker --queue rowlock" in page.text
    assert (run.filter, run.actor, run.options["spread_minutes"]) == ("status=FAILED&queue=mail", "anna", 10)
    bulk.carry_out(run.pk)
    assert Task.objects.get(pk=task.pk).status == "READY"
    assert "1 of 1 examined" in words(operator.get(f"{LIST}runs/{run.pk}/"))
    entry = Intervention.objects.get(target="table:tasks_task")
    assert (entry.actor, entry.reason) == ("anna", "card works")
    assert entry.action.startswith("requeue all status=FAILED&queue=mail up to #")


def test_rows_that_came_after_the_preview_are_left_alone(operator):
    rows.failed()
    page = press(operator, "requeue", "status=FAILED")
    late = rows.failed()
    operator.post(f"{ALL}requeue/", hidden(page.text))
    bulk.carry_out(BulkRun.objects.get().pk)
    assert Task.objects.get(pk=late.pk).status == "FAILED"


def test_a_limit_takes_the_oldest(operator):
    first, second, third = rows.failed(), rows.failed(), rows.failed()
    fields = hidden(press(operator, "requeue", "status=FAILED").text)
    assert operator.post(f"{ALL}requeue/", {**fields, "limit": "0"}).status_code == 400
    operator.post(f"{ALL}requeue/", {**fields, "limit": "2"})
    bulk.carry_out(BulkRun.objects.get().pk)
    assert set(Task.objects.ready().values_list("pk", flat=True)) >= {first.pk, second.pk}
    assert Task.objects.get(pk=third.pk).status == "FAILED"


def test_a_double_click_is_one_run(operator):
    rows.failed()
    fields = hidden(press(operator, "requeue", "status=FAILED").text)
    first, second = (operator.post(f"{ALL}requeue/", fields) for _ in range(2))
    assert first["Location"] == second["Location"]
    assert BulkRun.objects.count() == 1


def test_moving_asks_what_to_change_and_checks_it_as_the_command_does(operator):
    rows.ready(queue_name="mail")
    fields = hidden(press(operator, "edit", "queue=mail").text)
    assert "What is to change?" in operator.post(f"{ALL}edit/", fields).text
    bad = operator.post(f"{ALL}edit/", {**fields, "priority": "101", "run_after": "soon"})
    assert bad.status_code == 400
    assert "is not a priority: a whole number from -100 to 100" in words(bad)
    assert "is not a time from 2000 to 9000" in words(bad)
    assert not BulkRun.objects.exists()
    operator.post(f"{ALL}edit/", {**fields, "queue_name": "slow", "priority": "-5"})
    bulk.carry_out(BulkRun.objects.get().pk)
    assert Task.objects.filter(queue_name="slow", priority=-5).count() == 1


def test_cancelling_needs_a_reason(operator):
    rows.ready(queue_name="mail")
    fields = hidden(press(operator, "cancel", "queue=mail").text)
    page = operator.post(f"{ALL}cancel/", fields)
    assert page.status_code == 400
    assert "This needs a reason" in page.text
    assert hidden(page.text)["token"] == fields["token"]


def test_force_needs_a_reason(operator):
    rows.processing("w1")
    fields = hidden(press(operator, "requeue", "status=PROCESSING").text)
    assert "needs a reason" in operator.post(f"{ALL}requeue/", {**fields, "force": "on"}).text
    assert not BulkRun.objects.exists()


def test_quarantine_says_how_to_undo_it(operator):
    rows.failed(task_path="app.bad")
    page = confirm(operator, "quarantine", "task=app.bad")
    bulk.carry_out(BulkRun.objects.get().pk)
    page = operator.get(f"{LIST}runs/{BulkRun.objects.get().pk}/")
    assert "python manage.py quarantine_tasks --undo --queue quarantine" in page.text
    assert Task.objects.get(task_path="app.bad").queue_name == "quarantine"


def test_without_a_filter_nothing_is_offered_and_nothing_done(operator):
    rows.failed()
    assert 'name="all"' not in operator.get(LIST).text
    page = operator.post(f"{ALL}requeue/", {"filter": ""}, follow=True)
    assert "Narrow the list first" in page.text


@pytest.mark.parametrize(
    ("query", "offered"),
    [
        ("status=FAILED", {"requeue", "quarantine", "cancel"}),
        ("status=READY", {"edit", "put_back", "quarantine", "cancel"}),
        ("status=COMPLETED&queue=mail", set()),
        ("queue=mail", {"recover", "requeue", "edit", "put_back", "quarantine", "cancel"}),
    ],
)
def test_what_fits_the_filter_is_offered(operator, query, offered):
    for make in (rows.failed, rows.ready, rows.completed):
        make(queue_name="mail")
    page = operator.get(f"{LIST}?{query}").text
    bar = page.partition('class="bar"')[2]
    assert set(re.findall(r'data-action="(\w+)"', bar)) == offered
    assert bool(bar) == bool(offered)


def test_the_bar_acts_on_all_that_match_if_that_is_ticked(operator):
    ticked, other = rows.failed(queue_name="mail"), rows.failed(queue_name="mail")
    posted = {"filter": "queue=mail", "seen": str(Seen.of(ticked)), "next": LIST}
    assert "2 tasks match this filter" in words(operator.post(f"{LIST}do/requeue/", {**posted, "all": "1"}))
    alone = operator.post(f"{LIST}do/requeue/", posted).text
    assert f"#{other.pk}" not in alone
    row = operator.post(f"{LIST}do/requeue/", {**posted, "all": "1", "only": str(Seen.of(other))}).text
    assert f"#{other.pk}" in row
    assert f"#{ticked.pk}" not in row


def test_a_filter_whose_states_the_action_cannot_change_is_refused(operator):
    """Otherwise a filter of no state would reach every state."""
    rows.failed()
    page = operator.post(f"{ALL}requeue/", {"filter": "status=COMPLETED"}, follow=True)
    assert "No task in the states that the filter names" in page.text


@pytest.mark.parametrize(
    "fields",
    [
        {"filter": "status=GONE"},
        {"filter": "id=x"},
        {"filter": "queue=a", "upto": "x"},
        {"filter": "queue=a", "token": "x"},
    ],
)
def test_a_form_that_no_page_made_is_refused(operator, fields):
    page = operator.post(f"{ALL}requeue/", {**fields, "confirmed": "1"}, follow=True)
    assert 'class="error"' in page.text
    assert not BulkRun.objects.exists()


def test_confirmed_without_a_preview_it_is_a_preview(operator):
    rows.failed()
    page = operator.post(f"{ALL}requeue/", {"filter": "status=FAILED", "confirmed": "1"})
    assert "1 task matches this filter" in words(page)
    assert not BulkRun.objects.exists()


def test_a_secret_that_matches_is_not_counted(operator):
    rows.failed(task_path=handlers.log_in.module_path, kwargs={"password": "swordfish"})
    assert "There is nothing to do" in press(operator, "requeue", "q=swordfish").text


def test_a_run_is_stopped(operator):
    rows.failed()
    confirm(operator, "requeue", "status=FAILED")
    run = BulkRun.objects.get()
    page = operator.post(f"{LIST}runs/{run.pk}/stop/", follow=True)
    assert "Stopped" in page.text
    assert 'data-action="stop-run"' not in page.text


def test_the_part_that_refreshes_itself_ends_with_the_run(operator):
    rows.failed()
    confirm(operator, "requeue", "status=FAILED")
    run = BulkRun.objects.get()
    part = operator.get(f"{LIST}runs/{run.pk}/", headers={"HX-Request": "true"})
    assert "<html" not in part.text
    bulk.carry_out(run.pk)
    over = operator.get(f"{LIST}runs/{run.pk}/", headers={"HX-Request": "true"})
    assert over.headers["HX-Refresh"] == "true"


def test_runs_are_listed(operator):
    rows.failed()
    confirm(operator, "requeue", "status=FAILED")
    run = BulkRun.objects.get()
    for address in ("", "runs/"):
        assert "Waits for a worker" in operator.get(f"{LIST}{address}").text
    Task.objects.filter(pk=run.task_id).update(status="PROCESSING", claimed_by="w", attempt=1)
    assert "Under way" in operator.get(LIST).text
    Task.objects.filter(pk=run.task_id).update(status="FAILED", claimed_by=None, finished_at="2026-01-01T00:00Z")
    assert "Given up: its task has ended" in operator.get(f"{LIST}runs/").text
    assert "see how far it is" not in operator.get(LIST).text


def test_a_viewer_watches_and_may_not_press():
    rows.failed()
    confirm(client_of("Operators"), "requeue", "status=FAILED")
    run, viewer = BulkRun.objects.get(), client_of("Viewers", username="vera")
    assert "tasks.requeue_task" in viewer.get(f"{LIST}runs/{run.pk}/").text
    assert viewer.post(f"{LIST}runs/{run.pk}/stop/").status_code == 403
    assert press(viewer, "requeue", "status=FAILED").status_code == 403
    assert "disabled" in viewer.get(f"{LIST}?status=FAILED").text


@pytest.mark.parametrize("address", ["all/requeue/", "runs/1/stop/"])
def test_nothing_is_done_by_a_get_or_without_a_token(operator, address):
    assert operator.get(f"{LIST}{address}").status_code == 405
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(person("Operators"))
    assert strict.post(f"{LIST}{address}", {"filter": "status=FAILED"}).status_code == 403


def test_unknown_actions_and_runs_are_not_found(operator):
    assert operator.post(f"{ALL}delete/").status_code == 404
    assert operator.get(f"{LIST}runs/4711/").status_code == 404
    assert operator.post(f"{LIST}runs/4711/stop/").status_code == 404


def test_no_stored_text_of_a_run_is_markup(operator):
    hostile = "<img src=x onerror=alert(1)>"
    run = BulkRun.objects.create(
        action="edit", filter=f"queue={hostile}", upto=1, actor=hostile, options={"reason": hostile}, refused=1,
        refusals={"held": {"number": 1, "ids": [1], "sentence": hostile}},
    )  # fmt: skip
    for address in (f"runs/{run.pk}/", "runs/"):
        assert "<img" not in operator.get(f"{LIST}{address}").text
    assert "<img" not in press(operator, "requeue", f"queue={hostile}").text
