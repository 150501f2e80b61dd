"""Progress of tasks on the pages: the bar of a running task, its rate and estimated end, its checkpoint and its log."""

import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tasks.diagnosis.progress import Reported, latest_lines
from tasks.models import AttemptLog, Progress, Task
from tests.people import client_of
from tests.tasks import rows

LIST = "/admin/tasks/task/"
NOW = timezone.now()

pytestmark = pytest.mark.django_db


@pytest.fixture
def viewer():
    return client_of("Viewers")


def running(worker: str, **columns: object) -> Task:
    """A task that its living worker runs."""
    task = rows.processing(worker, **columns)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE tasks_worker SET current_task_id = %s, current_since = now()", [task.pk])
    return task


def report(task: Task, fraction: float | None, message: str = "", **columns: object) -> Progress:
    return Progress.objects.create(
        task_id=task.pk, **{"attempt": 1, "fraction": fraction, "message": message, **columns}
    )


def log(task: Task, *messages: str, number: int = 1, level: str = "INFO") -> None:
    for message in messages:
        AttemptLog.objects.create(task_id=task.pk, number=number, at=timezone.now(), level=level, message=message)


def words(fraction: float, first: float, seconds: float, ago: float = 0) -> str:
    row = Progress(
        fraction=fraction, first_fraction=first, first_at=NOW - timedelta(seconds=seconds + ago),
        updated_at=NOW - timedelta(seconds=ago),
    )  # fmt: skip
    reported = Reported.of(row, NOW)
    assert reported
    return reported.words


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ((0.45, 0.05, 200), "45 %, 12 %/min, about 4 min left"),
        ((0.45, 0.05, 200, 215), "45 %, 12 %/min, about 60 s left"),
        ((0.45, 0.05, 200, 300), "45 %, 12 %/min"),
        ((0.29, 0.29, 200), "29 %"),
        ((0.999, 0.1, 0.5), "99 %"),
        ((0.3, 0.5, 60), "30 %"),
        ((1.0, 0.0, 3600), "100 %, 1.7 %/min"),
    ],
    ids=["known", "going on", "late", "one report", "first second", "backwards", "done"],
)
def test_the_rate_and_the_end_are_told_once_they_are_known(reported, expected):
    assert words(*reported) == expected


def test_a_running_task_shows_a_bar_and_its_message_in_the_list(viewer):
    with rows.living_worker() as worker:
        report(running(worker), 0.45, "row <9> of\n20")
        text = viewer.get(LIST).text
    assert '<progress max="100" value="45" aria-label="45 %"></progress>' in text
    assert "row &lt;9&gt; of\\n20</span>" in text


def test_a_dead_worker_and_earlier_attempts_show_no_bar(viewer):
    report(rows.processing(rows.dead_worker()), 0.45)
    with rows.living_worker() as worker:
        report(running(worker, attempt=2), 0.45)
        report(running(worker), 0.45, updated_at=NOW - timedelta(minutes=1))
        report(rows.completed(), 1.0)
        text = viewer.get(LIST).text
    assert "<progress" not in text
    assert "Worker dead" in text


def test_the_bars_of_a_page_cost_one_statement(viewer):
    def statements() -> int:
        with CaptureQueriesContext(connection) as queries:
            viewer.get(LIST, headers={"HX-Request": "true"})
        return sum("tasks_progress" in query["sql"] for query in queries)

    rows.completed()
    assert statements() == 0
    for number in range(5):
        report(rows.processing(f"w{number}"), 0.5)
    assert statements() == 1


def test_the_page_of_a_running_task_tells_how_far_it_is(viewer):
    with rows.living_worker() as worker:
        now = timezone.now()
        task = running(worker, started_at=now - timedelta(minutes=4))
        times = {"first_at": now - timedelta(minutes=4), "updated_at": now - timedelta(seconds=20)}
        report(task, 0.5, "step <b>", first_fraction=0.1, **times)
        text = viewer.get(f"{LIST}{task.pk}/", headers={"HX-Request": "true"}).text
    assert 'value="50" aria-label="50 %"' in text
    assert "50 %, 11 %/min, about 4 min left</strong>" in text
    assert "step &lt;b&gt;" in text
    assert "Last report:" in text
    assert re.search(r">2\d s ago</time>", text)


@pytest.mark.parametrize("make", [rows.failed, rows.completed, rows.ready])
def test_a_task_that_does_not_run_has_no_bar_on_its_page(viewer, make):
    task = make()
    report(task, 0.5, attempt=task.attempt)
    assert 'id="reported"' not in viewer.get(f"{LIST}{task.pk}/").text


def test_the_checkpoint_is_told_folded_and_redacted_until_the_task_is_completed(viewer):
    state = {"password": "tr0ub4dor", "completed": ["line"] * 30}
    failed, completed = rows.failed(), rows.completed()
    for task in (failed, completed):
        report(task, None, state=state)
    text = viewer.get(f"{LIST}{failed.pk}/").text
    assert "Next attempt starts from a checkpoint" in text
    assert "<summary>{&quot;password&quot;: &quot;[redacted]&quot;" in text
    assert "tr0ub4dor" not in text
    assert "checkpoint" not in viewer.get(f"{LIST}{completed.pk}/").text


def test_the_log_is_shown_by_attempt_with_the_newest_at_the_end(viewer):
    task = rows.failed()
    assert 'id="log"' not in viewer.get(f"{LIST}{task.pk}/").text
    log(task, "began", "<script>alert(1)</script>")
    log(task, "gave up", number=2, level="ERROR")
    text = viewer.get(f"{LIST}{task.pk}/").text
    places = [text.index(part) for part in ("attempt 1\n", "began", "&lt;script&gt;", "attempt 2\n", "gave up")]
    assert places == sorted(places)
    assert '<span class="level severity-critical" translate="no">ERROR</span>' in text
    assert "<script>alert" not in text


def test_the_latest_lines_of_all_attempts_are_shown():
    task = rows.failed()
    log(task, *map(str, range(150)), number=1)
    log(task, *map(str, range(150, 250)), number=2)
    assert [line.message for line in latest_lines(task.pk)] == [str(number) for number in range(50, 250)]
