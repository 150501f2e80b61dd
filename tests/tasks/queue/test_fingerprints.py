"""Each unsuccessful attempt names its failure: by task, exception and place, never by its message."""

from hashlib import sha256

import pytest
from django.db import connection

from tasks import operations
from tasks.models import Attempt
from tasks.operations.filters import InvalidFilter, TaskFilter
from tasks.queue import recovery, release
from tasks.queue.completion import Failure
from tasks.support.audit import Who
from tests.tasks import claiming, rows
from tests.tasks.claiming import claim

pytestmark = pytest.mark.django_db
ANNA = Who("anna", "page")


def fingerprint(path: str, exception: str, place: str) -> str:
    return f"{sha256(f'{path}|{exception}|{place}'.encode()).hexdigest()[:12]} {place}"


def fail(path: str = "app.charge", exception: str = "app.Declined", place: str = "app.py:charge", **more) -> Attempt:
    """The attempt of a task that a worker has run in vain."""
    task = rows.ready(task_path=path, queue_name="mail", max_attempts=1)
    [claimed] = claim()
    claiming.fail(connection, "w1", claimed, Failure(exception, more.pop("text", "boom"), 0.0, place=place, **more))
    return Attempt.objects.get(task=task)


def test_a_worker_writes_it_with_the_queue_and_its_release(settings):
    settings.ROWLOCK = {**settings.ROWLOCK, "RELEASE": "2026.11\0.3"}
    attempt = fail()
    assert attempt.fingerprint == fingerprint("app.charge", "app.Declined", "app.py:charge")
    assert (attempt.queue_name, attempt.release) == ("mail", r"2026.11\x00.3")


def test_the_message_is_no_part_of_it_and_everything_else_is():
    assert fail(text="order 1").fingerprint == fail(text="order 2").fingerprint
    others = fail(), fail(path="app.send"), fail(exception="app.Refused"), fail(place="app.py:helper")
    assert len({attempt.fingerprint for attempt in others}) == 4


def test_without_a_place_the_outcome_stands_there():
    timed_out = fail(exception="tasks.exceptions.TimedOut", place="", outcome="timed_out")
    assert timed_out.fingerprint == fingerprint("app.charge", "tasks.exceptions.TimedOut", "timed_out")


def cancel(task) -> None:
    operations.cancel([task.pk], ANNA)


def requeue(task) -> None:
    operations.requeue([task.pk], ANNA)


def sweep(task) -> None:
    recovery.sweep(connection)


@pytest.mark.parametrize("end", [sweep, cancel, requeue])
def test_what_a_dead_worker_left_is_one_kind_of_failure_whoever_ended_it(end):
    task = rows.processing(rows.dead_worker(), task_path="app.charge", queue_name="mail")
    end(task)
    attempt = Attempt.objects.get()
    assert attempt.fingerprint == fingerprint("app.charge", "tasks.exceptions.Abandoned", "abandoned")
    assert (attempt.queue_name, attempt.release) == ("mail", "")


def test_an_attempt_that_was_given_back_is_no_failure():
    rows.ready()
    [claimed] = claim()
    release.release(connection, "w1", [(claimed.id, claimed.claimed_at())], parked_for=release.UNKNOWN)
    task = rows.processing("w-live")
    with rows.living_worker("w-live"):
        operations.requeue([task.pk], ANNA, operations.Settings(force=True, reason="stuck"))
    assert set(Attempt.objects.values_list("outcome", "fingerprint")) == {("released", "")}


class TestFilter:
    """Tasks by the hash of the failure of their latest attempt."""

    def test_the_latest_unsuccessful_attempt_decides(self):
        mine, other = fail(), fail(place="app.py:helper")
        Attempt.objects.create(task=mine.task, number=9, worker_id="w1", outcome="released")
        chosen = TaskFilter(failure=mine.fingerprint[:12])
        assert [task.pk for task in chosen.queryset()] == [mine.task_id]
        Attempt.objects.create(
            task=mine.task, number=10, worker_id="w1", outcome="failed", fingerprint=other.fingerprint
        )
        assert not chosen.queryset()

    def test_it_is_written_and_read_in_addresses_and_commands(self):
        chosen = TaskFilter(statuses=("FAILED",), failure="0123456789ab")
        assert TaskFilter.from_query(chosen.as_query()) == chosen
        assert chosen.as_words() == ["--status", "FAILED", "--failure", "0123456789ab"]

    @pytest.mark.parametrize("text", ["", "0123", "0123456789aB", "0123456789ab ", "%"])
    def test_only_a_hash_is_one(self, text):
        with pytest.raises(InvalidFilter, match="hash"):
            TaskFilter.from_query(f"failure={text or 'x'}")
