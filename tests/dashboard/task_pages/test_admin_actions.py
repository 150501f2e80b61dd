"""What a person does to tasks on a page: preview, right, reason, the version that was seen, and the answer."""

import pytest
from django.test import Client

from dashboard.task_pages.actions import Seen
from tasks.models import Attempt, Intervention, Queue, Task
from tests.html import hidden
from tests.people import client_of, person
from tests.sessions import session
from tests.tasks import rows

LIST = "/admin/tasks/task/"
DO = f"{LIST}do/"

pytestmark = pytest.mark.django_db
committed = pytest.mark.django_db(transaction=True)  # other sessions must see the rows


@pytest.fixture
def operator():
    return client_of("Operators")


def seen(*tasks: Task) -> list[str]:
    return [str(Seen.of(task)) for task in tasks]


def press(client: Client, action: str, *tasks: Task, **fields: str):
    """The button of a list or a detail page."""
    return client.post(f"{DO}{action}/", {"seen": seen(*tasks), "next": LIST, **fields})


def confirm(client: Client, action: str, *tasks: Task, **fields: str):
    """The button of the preview, and the page that it leads to."""
    return client.post(f"{DO}{action}/", {"seen": seen(*tasks), "next": LIST, "confirmed": "1", **fields}, follow=True)


def state(task: Task) -> tuple[str, int]:
    task.refresh_from_db()
    return task.status, task.version


@pytest.mark.parametrize("action", ["requeue", "cancel", "recover"])
def test_a_button_shows_a_preview_and_changes_nothing(operator, action):
    task = rows.failed()
    page = press(operator, action, task)
    assert page.status_code == 200
    assert f'data-action="{action}"' in page.text
    assert state(task) == ("FAILED", 11)
    assert not Intervention.objects.exists()


def done_for(task: Task) -> str:
    """The message, which leads to the task."""
    return f'Run again: done for <a href="{LIST}{task.pk}/">#{task.pk}</a>.'


def test_a_failed_task_runs_again(operator):
    task = rows.failed()
    page = confirm(operator, "requeue", task, reason="card limit raised")
    assert done_for(task) in page.text
    assert state(task) == ("READY", 12)
    [entry] = Intervention.objects.all()
    assert (entry.actor, entry.source, entry.reason, entry.version_before, entry.version_after) == (
        "anna",
        "page",
        "card limit raised",
        11,
        12,
    )


def test_a_selection_is_done_as_a_whole(operator):
    tasks = [rows.failed(), rows.cancelled(), rows.failed()]
    confirm(operator, "requeue", *tasks)
    assert {state(task)[0] for task in tasks} == {"READY"}


def test_the_button_of_one_row_leaves_the_ticked_ones_alone(operator):
    ticked, pressed = rows.failed(), rows.failed()
    page = operator.post(f"{DO}requeue/", {"seen": seen(ticked), "only": seen(pressed)[0]})
    assert f"#{pressed.pk}" in page.text
    assert f"#{ticked.pk}" not in page.text


def test_a_task_of_a_dead_worker_is_taken_back(operator):
    task = rows.processing(rows.dead_worker())
    Queue.objects.create(name="default", recovery="ask")
    confirm(operator, "recover", task)
    assert state(task)[0] == "READY"
    assert Attempt.objects.get().outcome == "abandoned"
    assert Intervention.objects.get().action == "recover"


def test_only_the_chosen_tasks_of_a_dead_worker_are_taken_back(operator):
    worker_id = rows.dead_worker()
    chosen, other = rows.processing(worker_id), rows.processing(worker_id)
    confirm(operator, "recover", chosen)
    assert (state(chosen)[0], state(other)[0]) == ("READY", "PROCESSING")


@committed
def test_a_task_of_a_live_worker_is_not_taken_back(operator):
    with rows.living_worker() as worker_id:
        task = rows.processing(worker_id)
        page = confirm(operator, "recover", task)
    assert "not changed: its worker is not dead" in page.text
    assert state(task)[0] == "PROCESSING"


def test_cancelling_asks_for_a_reason(operator):
    task = rows.ready()
    page = confirm(operator, "cancel", task)
    assert page.status_code == 400
    assert "This needs a reason" in page.text
    assert state(task)[0] == "READY"
    confirm(operator, "cancel", task, reason="sent twice")
    assert state(task)[0] == "CANCELLED"


@committed
def test_the_worker_of_a_running_task_is_asked_to_end_it(operator):
    with rows.living_worker() as worker_id:
        task = rows.processing(worker_id)
        page = confirm(operator, "cancel", task, reason="hangs")
    assert "were asked to end them" in page.text
    task.refresh_from_db()
    assert task.cancel_requested_at is not None


@committed
def test_a_live_task_runs_again_by_force_and_with_a_reason_alone(operator):
    with rows.living_worker() as worker_id:
        task = rows.processing(worker_id)
        preview = press(operator, "requeue", task)
        without = confirm(operator, "requeue", task)
        unexplained = confirm(operator, "requeue", task, force="on")
        assert state(task)[0] == "PROCESSING"
        confirm(operator, "requeue", task, force="on", reason="the payment never left")
    assert "the effect may happen twice" in preview.text
    assert "is alive and works on it" in without.text
    assert unexplained.status_code == 400
    assert state(task)[0] == "READY"


def test_a_double_click_does_one_thing_and_is_no_error(operator):
    task = rows.failed()
    form = hidden(press(operator, "requeue", task).text)
    answers = [operator.post(f"{DO}requeue/", form, follow=True) for _ in range(2)]
    assert [done_for(task) in answer.text for answer in answers] == [True, True]
    assert Intervention.objects.count() == 1
    assert state(task) == ("READY", 12)


def test_a_double_click_gets_the_answer_of_the_first_with_its_refusals(operator):
    failed, completed = rows.failed(), rows.completed()
    form = {**hidden(press(operator, "requeue", failed, completed).text), "seen": seen(failed, completed)}
    operator.post(f"{DO}requeue/", form, follow=True)
    page = operator.post(f"{DO}requeue/", form, follow=True)
    assert done_for(failed) in page.text
    assert f">#{completed.pk}</a> not changed: it has completed" in page.text


def test_a_token_that_no_page_made_is_refused(operator):
    task = rows.failed()
    assert "The form does not match this page" in confirm(operator, "requeue", task, token="short").text
    assert state(task)[0] == "FAILED"


@committed
def test_a_locked_row_is_busy_and_its_holder_is_named(operator):
    task = rows.failed()
    with session("psql") as other:
        other.execute(f"SELECT FROM tasks_task WHERE id = {task.pk} FOR UPDATE")
        page = confirm(operator, "requeue", task)
        assert f"locked by pid {other.info.backend_pid} (psql)" in page.text
    assert state(task)[0] == "FAILED"


@committed
def test_a_locked_row_of_a_dead_worker_is_busy_too(operator):
    task = rows.processing(rows.dead_worker())
    with session("psql") as other:
        other.execute(f"SELECT FROM tasks_task WHERE id = {task.pk} FOR UPDATE")
        page = confirm(operator, "recover", task)
        assert f"locked by pid {other.info.backend_pid} (psql)" in page.text


@committed
def test_a_table_that_is_locked_as_a_whole_gives_an_answer_within_seconds(operator):
    task = rows.failed()
    with session("psql") as other:
        other.execute("LOCK TABLE tasks_task IN EXCLUSIVE MODE")
        page = confirm(operator, "requeue", task)
    assert page.status_code == 503
    assert "is locked, perhaps by a migration" in page.text


def test_the_preview_says_who_holds_it_its_last_sign_of_life_and_whether_the_effect_may_repeat(operator):
    task = rows.processing(rows.dead_worker())
    text = press(operator, "recover", task).text
    assert "Worker dead" in text
    assert "ago, its session is gone" in text
    assert "1/5" in text
    assert "What its worker did before it died may happen again." in text
    assert "Each becomes READY at once" in text
    assert "From a shell, for every dead worker:" in text


def test_the_preview_warns_when_nobody_would_run_it(operator):
    text = press(operator, "recover", rows.processing(rows.dead_worker())).text
    assert "The rows become READY and nobody will run them." in text
    assert "python manage.py run_worker --queue default" in text


@pytest.mark.parametrize("make", [rows.failed, rows.cancelled])
def test_so_does_the_preview_of_a_finished_task(operator, make):
    assert "The rows become READY and nobody will run them." in press(operator, "requeue", make()).text


@committed
@pytest.mark.parametrize("queues", [[], ["default"]], ids=["all", "its own"])
def test_the_preview_does_not_warn_while_a_worker_serves_the_queue(operator, queues):
    with rows.living_worker(queues=queues):
        text = press(operator, "requeue", rows.failed()).text
    assert "No live worker" not in text


def test_nothing_runs_in_quarantine_so_its_preview_asks_for_no_worker(operator):
    assert "Start a worker" not in press(operator, "quarantine", rows.failed()).text


def test_the_preview_says_what_would_stay_as_it_is(operator):
    text = press(operator, "requeue", rows.failed(), rows.completed()).text
    assert "1 of these would not change" in text
    assert "It would not change: it has completed" in text


@pytest.mark.parametrize("action", ["requeue", "cancel", "recover"])
@pytest.mark.parametrize("fields", [{}, {"confirmed": "1", "reason": "r"}])
def test_a_viewer_may_not_and_reads_which_right_is_missing(action, fields):
    task = rows.failed()
    page = press(client_of("Viewers"), action, task, **fields)
    assert page.status_code == 403
    assert f"You lack the right tasks.{action}_task" in page.text
    assert "Operators" in page.text
    assert state(task) == ("FAILED", 11)


def test_a_get_changes_nothing_and_is_refused(operator):
    rows.failed()
    assert operator.get(f"{DO}requeue/").status_code == 405


def test_a_post_without_a_token_is_refused():
    client = Client(enforce_csrf_checks=True)
    client.force_login(person("Operators"))
    task = rows.failed()
    assert press(client, "requeue", task, confirmed="1").status_code == 403
    assert state(task) == ("FAILED", 11)


def test_nothing_selected_is_said(operator):
    page = operator.post(f"{DO}requeue/", {"next": LIST}, follow=True)
    assert "Nothing is selected" in page.text


@pytest.mark.parametrize("text", ["", "[]", "{}", "4711", '{"id": "x"}', '{"id": 1, "version": "2"}', "\x00"])
def test_a_form_that_no_page_made_is_refused(operator, text):
    page = operator.post(f"{DO}requeue/", {"seen": text, "confirmed": "1"}, follow=True)
    assert "The form" in page.text


@pytest.mark.parametrize(
    "elsewhere", ["https://evil.example/", "//evil.example/", "/admin/logout/", "javascript:alert(1)"]
)
def test_the_way_back_leads_to_the_list_alone(operator, elsewhere):
    answer = operator.post(f"{DO}requeue/", {"seen": seen(rows.failed()), "confirmed": "1", "next": elsewhere})
    assert answer["Location"] == LIST


def test_the_filter_is_kept_on_the_way_back(operator):
    back = f"{LIST}?status=FAILED&queue=default"
    answer = operator.post(f"{DO}requeue/", {"seen": seen(rows.failed()), "confirmed": "1", "next": back})
    assert answer["Location"] == back


def test_an_unknown_action_is_a_404(operator):
    assert operator.post(f"{DO}delete/").status_code == 404
