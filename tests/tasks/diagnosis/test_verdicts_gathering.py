"""The facts of a verdict as they are gathered from the database: places, keys, holders, deaths, in few statements."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tasks import diagnosis, operations
from tasks.diagnosis import Finding, KeyState, Verdict
from tasks.models import Attempt, Task, Worker
from tasks.support.audit import Who
from tests.sessions import session
from tests.tasks import rows


def judge(*tasks: Task) -> dict[int, Finding]:
    facts = diagnosis.gather(tasks)
    return {task.pk: diagnosis.decide(task, facts) for task in tasks}


@pytest.mark.django_db
def test_the_place_in_the_queue_is_the_order_of_the_claim():
    Worker.objects.create(id="w7f", hostname="host", pid=1)
    last, first, second = rows.ready(), rows.ready(priority=5), rows.ready(priority=5)
    rows.ready(priority=9, run_after="2999-01-01T00:00Z")
    rows.ready(queue_name="mail")
    positions = diagnosis.gather([last, first, second]).positions
    assert positions == {first.pk: 1, second.pk: 2, last.pk: 3}


@pytest.mark.django_db
def test_the_running_task_holds_the_key_even_when_an_earlier_one_was_committed_later():
    late, running, other = (rows.ready(ordering_key="anna") for _ in range(3))
    Task.objects.filter(pk=running.pk).update(status="PROCESSING", claimed_by="w7f", attempt=1)
    assert diagnosis.gather([late]).keys == {"anna": KeyState(running.pk, 2)}
    assert other.pk > running.pk


@pytest.mark.django_db
def test_a_retry_that_waits_holds_its_key_and_a_failed_task_does_not():
    rows.failed(ordering_key="anna")
    waiting, behind = rows.ready(ordering_key="anna", run_after="2999-01-01T00:00Z"), rows.ready(ordering_key="anna")
    assert diagnosis.gather([behind]).keys == {"anna": KeyState(waiting.pk, 1)}


@pytest.mark.django_db
def test_the_last_exception_and_the_last_canceller_are_told():
    failed, cancelled = rows.failed(), rows.ready()
    for name in ("builtins.KeyError", "builtins.ValueError"):
        Attempt.objects.create(task=failed, number=1, worker_id="w", outcome="failed", exception_class=name)
    operations.cancel([cancelled.pk], Who("anna", "page"))
    cancelled.refresh_from_db()
    assert "builtins.ValueError" in judge(failed)[failed.pk].sentence
    assert judge(cancelled)[cancelled.pk].sentence == "Cancelled by anna."


@pytest.mark.django_db(transaction=True)
def test_a_row_that_another_session_holds_is_told_from_one_that_is_free():
    with rows.living_worker(task_paths=[rows.NOTHING]), session("psql") as other:
        locked, free = rows.ready(), rows.ready()
        other.execute(f"SELECT FROM tasks_task WHERE id = {locked.pk} FOR UPDATE")
        pid = other.info.backend_pid
        found = judge(locked, free)
    assert (found[locked.pk].verdict, found[free.pk].verdict) == (Verdict.ROW_LOCKED, Verdict.READY)
    assert f"pid {pid} (psql)" in found[locked.pk].sentence


@pytest.mark.django_db(transaction=True)
def test_a_worker_whose_session_ended_is_dead_and_another_runs():
    with rows.living_worker() as alive:
        kept, lost = rows.processing(alive), rows.processing(rows.just_died_worker())
        Worker.objects.filter(pk=alive).update(current_task_id=kept.pk)
        found = judge(kept, lost)
    assert (found[kept.pk].verdict, found[lost.pk].verdict) == (Verdict.RUNNING, Verdict.WORKER_DEAD)


@pytest.mark.django_db
def test_the_number_of_statements_does_not_grow_with_the_page():
    def statements(number: int) -> int:
        page = [
            make(ordering_key=f"key-{number}")
            for number in range(number)
            for make in (rows.ready, rows.failed, rows.cancelled, rows.completed)
        ]
        page += [rows.processing(f"w{number}") for number in range(number)] + [rows.ready() for _ in range(number)]
        with CaptureQueriesContext(connection) as queries:
            judge(*page)
        return len(queries)

    assert statements(1) == statements(10) <= 12
