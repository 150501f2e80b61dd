"""“Why not running?”: the tasks of one queue, counted by verdict, with what helps."""

import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from tasks.diagnosis import Verdict, why
from tasks.models import Queue
from tests.people import client_of
from tests.sessions import session
from tests.tasks import rows

WHY = "/admin/tasks/task/why/"

pytestmark = pytest.mark.django_db


def counted(queue_name: str = "mail") -> dict[str, int]:
    return {reason.verdict: reason.number for reason in why.explain(queue_name).reasons}


def test_tasks_are_counted_by_verdict_those_that_are_stuck_first():
    with rows.living_worker("w1", queues=["mail"], task_paths=[rows.NOTHING]):
        first = rows.ready(queue_name="mail", ordering_key="k")
        rows.ready(queue_name="mail", ordering_key="k"), rows.ready(queue_name="mail", ordering_key="k")
        rows.ready(queue_name="mail", run_after="2031-01-01T00:00Z")
        rows.processing("w-gone", queue_name="mail")
        rows.ready(queue_name="other"), rows.failed(queue_name="mail")
        found = why.explain("mail")
    assert {reason.verdict: reason.number for reason in found.reasons} == {
        Verdict.WORKER_DEAD: 1,
        Verdict.HELD_BY_KEY: 2,
        Verdict.READY: 1,
        Verdict.WAITING: 1,
    }
    assert found.reasons[0].verdict is Verdict.WORKER_DEAD
    held = next(reason for reason in found.reasons if reason.verdict is Verdict.HELD_BY_KEY)
    assert f"#{first.pk}" in held.first.sentence
    assert (found.judged, found.is_complete) == (5, True)


def test_a_task_that_runs_with_a_key_is_counted_once():
    rows.processing("w-gone", queue_name="mail", ordering_key="k"), rows.ready(queue_name="mail", ordering_key="k")
    assert counted() == {Verdict.WORKER_DEAD: 1, Verdict.HELD_BY_KEY: 1}
    assert why.explain("mail").judged == 2


def test_it_judges_the_first_tasks_and_says_so(monkeypatch):
    monkeypatch.setattr(why, "SAMPLE", 3)
    rows.many(5, queue_name="mail")
    found = why.explain("mail")
    assert (found.judged, found.is_complete, found.queue.ready) == (3, False, 5)


def test_the_page_says_the_command_that_starts_a_worker():
    rows.ready(queue_name="mail")
    page = client_of("Viewers").get(f"{WHY}mail/")
    text = " ".join(re.sub(r"<[^>]+>", " ", page.text).split())
    assert "No worker for queue 1" in text
    assert page.text.count("python manage.py run_worker --queue mail") >= 2


def test_a_paused_queue_says_how_to_resume_it():
    Queue.objects.create(name="mail", paused=True, paused_by="anna")
    rows.ready(queue_name="mail")
    page = client_of("Viewers").get(f"{WHY}mail/").text
    assert "was paused by anna" in page
    assert "python manage.py resume_queue mail" in page


def test_a_part_of_it_is_served_alone():
    rows.ready(queue_name="mail")
    part = client_of("Viewers").get(f"{WHY}mail/", headers={"HX-Request": "true"}).text
    assert "<html" not in part
    assert 'id="why-no_worker"' in part


@pytest.mark.parametrize("name", ["a/b", "a b", "ä?&#", "<script>alert(1)</script>", "nobody"])
def test_any_name_of_a_queue_has_a_page(name):
    page = client_of("Viewers").get(reverse("admin:tasks_task_why", args=[name]))
    assert page.status_code == 200
    assert "No task of this queue waits or runs." in page.text
    assert "<script>alert" not in page.text


def test_the_number_of_statements_does_not_grow_with_the_rows():
    viewer = client_of("Viewers")

    def statements() -> int:
        with CaptureQueriesContext(connection) as queries:
            viewer.get(f"{WHY}mail/", headers={"HX-Request": "true"})
        return len(queries)

    (
        rows.ready(queue_name="mail"),
        rows.ready(queue_name="mail", ordering_key="k"),
        rows.processing("w", queue_name="mail"),
    )
    few = statements()
    for number in range(20):
        rows.ready(queue_name="mail", ordering_key=f"k{number}"), rows.processing(f"w{number}", queue_name="mail")
    assert statements() == few
    assert few <= 23


def test_who_may_not_see_tasks_may_not_ask():
    assert client_of().get(f"{WHY}mail/").status_code == 403


FILL = """
INSERT INTO tasks_task (task_path, queue_name, ordering_key, concurrency_key)
SELECT 'x', 'mail', CASE number % 3 WHEN 1 THEN 'k' || number END, CASE number % 3 WHEN 2 THEN 'k' || number END
FROM generate_series(1, 6000) AS number
"""


@pytest.mark.parametrize(
    ("asked", "scan"),
    [
        (lambda: why.kinds("mail")[0], "Index Scan using tasks_task_claim "),
        (lambda: why.keyed("mail"), "Index Only Scan using tasks_task_keyed "),
        (lambda: why.limited("mail"), "Index Only Scan using tasks_task_limited "),
        (lambda: why.kinds("mail")[3], "Index Scan using tasks_task_claimed "),
    ],
)
def test_each_kind_of_rows_is_read_in_the_order_of_its_index(asked, scan):
    """Otherwise the page would sort a hundred thousand rows."""
    with connection.cursor() as cursor:
        cursor.execute(FILL)
        cursor.execute("ANALYZE tasks_task")
    plan = asked()[:200].explain()
    assert "Sort" not in plan
    assert "Seq Scan" not in plan
    assert scan in plan


@pytest.mark.django_db(transaction=True)
def test_the_session_that_holds_a_row_is_linked():
    with rows.living_worker("w1", task_paths=[rows.NOTHING]), session("psql") as other:
        task = rows.ready(queue_name="mail")
        other.execute(f"SELECT FROM tasks_task WHERE id = {task.pk} FOR UPDATE")
        page = client_of("Viewers").get(f"{WHY}mail/").text
        link = f"/admin/ops/locks/#node-{other.info.backend_pid}"
    assert link in page[page.index("why-row_locked") :]


def test_what_waits_for_its_time_can_be_run_now():
    task = rows.ready(queue_name="mail", run_after="2031-01-01T00:00Z")
    page = client_of("Viewers").get(f"{WHY}mail/").text
    assert f"python manage.py edit_tasks {task.pk} --set-run-after now" in page
