"""One look a second for everybody: each question asked once, by one thread, and never an old answer."""

import threading
from collections.abc import Iterator

import pytest
from django.db import OperationalError, connection
from django.test import override_settings

from dashboard.live import snapshots
from tasks.models import Queue
from tasks.panels import Snapshot
from tasks.support.database import fetch
from tests.sessions import session
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db


class Question:
    """A question that counts how often it is asked."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked = 0
        self.error = error

    def __call__(self) -> int:
        self.asked += 1
        if self.error:
            raise self.error
        return self.asked


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    snapshots.forget()
    yield
    snapshots.forget()


def test_a_look_asks_each_question_once():
    snapshot, first, second = Snapshot(), Question(), Question()
    assert [snapshot.once(first), snapshot.once(first), snapshot.once(second)] == [1, 1, 1]
    assert (first.asked, second.asked) == (1, 1)


def test_everybody_within_the_second_gets_the_same_look():
    with override_settings(SHARED_LOOK_SECONDS=60):
        assert snapshots.current() is snapshots.current()
        before = snapshots.current()
        snapshots.forget()
        assert snapshots.current() is not before


def test_after_its_time_a_look_is_made_anew():
    with override_settings(SHARED_LOOK_SECONDS=0):
        assert snapshots.current() is not snapshots.current()
        assert snapshots.current("charts", 300) is not snapshots.current("charts", 300)


def test_a_look_lasts_as_long_as_its_name_is_asked_for():
    with override_settings(SHARED_LOOK_SECONDS=1e-6):
        charts = snapshots.current("charts", 300)
        assert snapshots.current("charts", 300) is charts
        latest = snapshots.latest("charts", 300)
        assert (latest.snapshot, latest.ends, latest.serves_until) == (charts, charts.began + 300, charts.began + 450)


def test_of_many_looks_those_are_kept_that_were_made_last(monkeypatch):
    monkeypatch.setattr(snapshots, "MOST_SNAPSHOTS", 2)
    with override_settings(SHARED_LOOK_SECONDS=60):
        first, second = snapshots.current("a"), snapshots.current("b")
        snapshots.current("c")
        assert snapshots.current("b") is second
        assert snapshots.current("a") is not first


def test_a_look_that_took_long_is_kept_longer_unless_it_is_the_first():
    with override_settings(SHARED_LOOK_SECONDS=0.001):
        first = snapshots.current()
        first.busy_seconds = 60
        dear = wait_until(lambda: (snapshot := snapshots.current()) is not first and snapshot)
        dear.busy_seconds = 60
        assert snapshots.current() is dear
        dear.busy_seconds = 0
        wait_until(lambda: snapshots.current() is not dear)


def test_a_database_error_is_told_to_everybody_and_asked_for_once():
    snapshot, question = Snapshot(), Question(OperationalError("gone"))
    for _ in range(2):
        with pytest.raises(OperationalError):
            snapshot.once(question)
    assert question.asked == 1
    assert not snapshot.knows(question)


def test_threads_wait_for_the_one_that_computes():
    snapshot, may_go, asked = Snapshot(), threading.Event(), []

    def slow() -> str:
        asked.append(threading.get_ident())
        assert may_go.wait(10)
        return "answer"

    def ask() -> None:
        answers.append(snapshot.once(slow))
        connection.close()

    answers: list[str] = []
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    may_go.set()
    for thread in threads:
        thread.join(10)
    assert answers == ["answer"] * 4
    assert len(asked) == 1


def test_the_time_of_a_look_stands_still():
    snapshot = Snapshot()
    assert snapshot.now == snapshot.now
    assert snapshot.now.tzinfo is not None


@pytest.mark.django_db(transaction=True)
def test_after_one_wait_for_a_lock_in_vain_the_next_question_waits_less():
    def limit() -> str:
        [row] = fetch(connection, "SHOW lock_timeout")
        return str(row["lock_timeout"])

    def count() -> int:
        return Queue.objects.count()

    assert Snapshot().once(limit) == "300ms"
    snapshot = Snapshot()
    with session() as other:
        other.execute("LOCK TABLE tasks_queue")
        with pytest.raises(OperationalError):
            snapshot.once(count)
    assert snapshot.once(limit) == "30ms"
