"""The director by itself: it ends in time, leaves no session, and obeys nothing but its three requests."""

import signal

import pytest
from django.db import connection

from dashboard.demo import control, director
from dashboard.demo.director import AlreadyDirected, Director
from dashboard.lab.drill import Victim
from dashboard.models import DemoRow, LabRun
from dashboard.tasks import nap, summarize_year
from tasks import testing
from tasks.models import Progress, Task
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'rowlock:demo:%'"
A_FRACTION = 0.01  # of a minute


class NoWorker:
    """Stands for a worker that has ended."""

    def __init__(self, queue):
        self.queue = queue

    def running(self, connection):
        return None

    def is_alive(self):
        return False

    def end(self):
        """There is nothing to end."""


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    """No process is started, and the signals are ours again afterwards."""
    monkeypatch.setattr(Victim, "start", NoWorker)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def sessions():
    with connection.cursor() as cursor:
        cursor.execute(SESSIONS)
        return cursor.fetchone()[0]


def test_it_ends_by_itself_and_leaves_no_session():
    director.load_once()
    directed = Director(minutes=A_FRACTION)
    directed.run()
    assert directed.trickled, "it enqueues from its first tick on"
    wait_until(lambda: control.director() is None)
    wait_until(lambda: sessions() == 0)


def test_there_is_one():
    first, second = Director(minutes=A_FRACTION), Director(minutes=A_FRACTION)

    def start_another():
        with pytest.raises(AlreadyDirected):
            second.run()
        first.stop()

    first.build_chain = start_another
    first.run()
    assert first.is_stopping


@pytest.mark.parametrize(
    "payload",
    [
        "",
        "kill 1",
        "[]",
        '{"do": "kill"}',
        '{"do": "drop", "actor": "a", "source": "page"}',
        '{"do": "stop", "actor": "a\\nb", "source": "page"}',
        '{"do": "stop", "actor": 1, "source": "page"}',
    ],
)
def test_what_is_no_request_is_passed_over(payload, caplog):
    deaf = Director()
    deaf.obey(payload)
    assert (deaf.scenes, deaf.is_stopping) == ([], False)
    assert "not a request" in caplog.text


def test_a_second_click_while_a_worker_is_being_killed_kills_no_second_one():
    clicked = Director()
    for _click in range(2):
        clicked.obey('{"do": "kill", "actor": "anna", "source": "page"}')
    assert len(clicked.scenes) == 1


@pytest.mark.parametrize(("is_allowed", "runs"), [(True, 3), (False, 0)])
def test_the_lab_compares_once_where_it_is_allowed(settings, is_allowed, runs):
    settings.ROWLOCK_LAB = is_allowed
    for _start in range(2):
        director.compare_once()
    assert LabRun.objects.count() == runs
    assert Task.objects.filter(task_path="dashboard.tasks.run_lab").count() == (1 if runs else 0)


def test_two_trickling_tasks_a_minute_tell_how_far_they_are(monkeypatch):
    monkeypatch.setattr(director, "TRICKLE_SECONDS", 0.0)
    directed = Director()
    for _task in range(int(60 / 0.5)):
        directed._trickle()
    first_minute = list(Task.objects.order_by("id").values_list("task_path", flat=True))
    assert len(first_minute) == 60 / 0.5
    assert first_minute.count("dashboard.tasks.summarize_year") == 2
    assert "dashboard.tasks.summarize_year" in first_minute[:60], "seen within half a minute"


def test_the_summary_tells_and_begins_again_where_it_was(monkeypatch):
    monkeypatch.setattr("dashboard.tasks.MONTH_SECONDS", 0.0)
    task_id = int(summarize_year.enqueue().id)
    Progress.objects.create(task_id=task_id, attempt=1, state=9)
    Task.objects.filter(pk=task_id).update(attempt=1)
    testing.run_due()
    told = Progress.objects.get(task_id=task_id)
    assert (told.fraction, told.first_fraction, told.message, told.state) == (1.0, 10 / 12, "month 12 of 12", 12)


def test_whatever_it_enqueues_is_listed_as_the_demos():
    director.enqueue(nap, 0.1)
    director.enqueue(nap, 0.1)
    made = Task.objects.values_list("pk", flat=True)
    assert set(made) == set(DemoRow.objects.filter(kind="task").values_list("row_id", flat=True))
    assert len(made) == 2
