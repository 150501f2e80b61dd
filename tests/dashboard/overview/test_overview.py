"""The first page: the queues in numbers that are links, figures, failures; what each person may see of it."""

from datetime import timedelta

import pytest
from django.utils import timezone

from tasks.models import Attempt, Queue, Task
from tests.html import flat
from tests.people import client_of
from tests.tasks import rows

pytestmark = pytest.mark.django_db
OVERVIEW = "/admin/"
QUERIES = 89  # a third of them are the limits that each question is asked under


def page(*groups: str, **headers: str) -> str:
    return client_of(*(groups or ("Viewers",))).get(OVERVIEW, headers=headers).content.decode()


def fail(task: Task, error: str = "app.errors.Broken") -> Task:
    Attempt.objects.create(task=task, number=5, worker_id="w", outcome="failed", exception_class=error)
    return task


def test_an_empty_database_says_that_all_is_well_and_what_to_do():
    content = page()
    assert "Nothing needs attention." in content
    assert "manage.py enqueue_task PATH" in content
    assert "No attempt has failed." in content


def test_htmx_gets_the_panel_and_a_browser_the_page():
    assert "<html" in page()
    panel = page(**{"HX-Request": "true"})
    assert 'id="queue-rows"' in panel
    assert "<html" not in panel


def test_each_number_of_a_queue_is_a_link_to_what_is_behind_it():
    (
        rows.ready(queue_name="mail&more"),
        rows.failed(queue_name="mail&more"),
        rows.processing("w", queue_name="mail&more"),
    )
    client = client_of("Viewers")
    content = client.get(OVERVIEW).content.decode()
    for status in ("READY", "FAILED", "PROCESSING"):
        link = f"/admin/tasks/task/?status={status}&amp;queue=mail%26more"
        assert link in content
        assert client.get(link.replace("&amp;", "&")).status_code == 200


def test_a_count_that_stopped_says_so(monkeypatch):
    for module in ("views.overview", "attention.queues"):
        monkeypatch.setattr(f"dashboard.{module}.COUNT_CAP", 3)
    rows.many(2)
    assert "Counts stop" not in page()
    rows.many(2)
    content = page()
    assert "Counts stop" in content
    assert ">3+<" in flat(content)


def test_the_navigation_counts_what_is_stuck():
    rows.processing(rows.dead_worker())
    client = client_of("Viewers")
    for address in (OVERVIEW, "/admin/ops/audit/"):
        assert b"Stuck (1)" in client.get(address).content
    assert b"Stuck" not in client_of(username="nobody").get(OVERVIEW).content


def test_what_is_ready_and_may_not_start_yet_has_no_age_but_a_reason():
    rows.processing("w-gone", ordering_key="anna"), rows.ready(ordering_key="anna")
    assert "held back" in page("Viewers")


def test_a_paused_queue_and_one_that_asks_say_so():
    Queue.objects.create(name="mail", paused=True, recovery="ask")
    content = page()
    assert "Paused" in content
    assert "recovery: manual" in content


def test_the_latest_failures_are_grouped_by_task_and_exception():
    for _ in range(3):
        fail(rows.ready(task_path="app.charge", attempt=1))
    fail(rows.failed(task_path="app.send"), "smtplib.SMTPException")
    content = page()
    assert content.count("app.errors.Broken") >= 1
    assert "error=app.errors.Broken" in content
    assert "smtplib.SMTPException" in content


def test_released_attempts_are_no_failures():
    Attempt.objects.create(task=rows.ready(attempt=1), number=1, worker_id="w", outcome="released")
    assert "No attempt has failed." in page()


def test_text_from_outside_is_shown_as_text():
    fail(rows.failed(task_path="<script>alert(1)</script>", queue_name="<b>q</b>"), "<i>Error</i>")
    content = page()
    assert "<script>alert(1)" not in content
    assert "<b>q</b>" not in content
    assert "<i>Error</i>" not in content


def test_who_may_see_nothing_is_told_nothing():
    rows.failed(queue_name="secret-queue", task_path="secret.task")
    answer = client_of().get(OVERVIEW)
    assert answer.status_code == 200
    assert b"secret" not in answer.content
    assert b"tasks.view_task" in answer.content
    assert b"Nothing needs attention" not in answer.content, "nobody knows that who may not look"


@pytest.mark.parametrize("headers", [{}, {"HX-Request": "true"}])
def test_its_queries_do_not_grow_with_what_it_shows(headers, django_assert_max_num_queries):
    client = client_of("Operators")
    for number in range(8):
        name = f"q{number}"
        rows.ready(queue_name=name, run_after=timezone.now() - timedelta(hours=1))
        rows.processing(f"w{number}", queue_name=name)
        fail(rows.failed(queue_name=name, task_path=f"app.task{number}"))
    with django_assert_max_num_queries(QUERIES):
        assert client.get(OVERVIEW, headers=headers).status_code == 200


def test_only_the_server_reads_the_page_is_not_to_be_posted():
    assert client_of("Operators").post(OVERVIEW).status_code == 405


def test_the_figures_of_the_queue_come_before_those_of_sessions():
    html = client_of("Operators").get("/admin/").text
    places = [
        html.index(label) for label in ("Done / min", "Failed attempts", "Blocked sessions", "Oldest transaction")
    ]
    assert places == sorted(places)
