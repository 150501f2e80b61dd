"""`cancel_tasks`: at once what nobody works on, through its worker what runs."""

import threading

import pytest

from tasks.models import Attempt, Intervention, Task
from tests.commands import run
from tests.sessions import session
from tests.tasks import rows
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db


def cancel(*argv):
    return run("cancel_tasks", "--json", *argv)


@pytest.mark.parametrize("state", [rows.ready, rows.failed])
def test_what_nobody_works_on_is_cancelled_at_once(state):
    task = state()
    outcome = cancel(task.pk, "--reason", "wrong customer")
    assert (outcome.status, outcome.data) == (
        0,
        {"cancelled": 1, "cancelling": [], "refused": [], "ids": [task.pk]},
    )
    entry, task = Intervention.objects.get(), Task.objects.get()
    assert (task.status, task.finished_at is not None) == ("CANCELLED", True)
    assert (entry.action, entry.reason, entry.version_after) == ("cancel", "wrong customer", task.version)


@pytest.mark.parametrize(("state", "reason"), [(rows.completed, "completed"), (rows.cancelled, "already")])
def test_what_is_over_is_refused(state, reason):
    task = state()
    outcome = cancel(task.pk)
    assert (outcome.status, [refusal["reason"] for refusal in outcome.data["refused"]]) == (1, [reason])
    assert Task.objects.get().version == task.version


def test_the_task_of_a_dead_worker_is_cancelled_at_once_and_its_attempt_told():
    task = rows.processing(rows.dead_worker(), attempt=3)
    assert cancel(task.pk).data["cancelled"] == 1
    assert (Task.objects.get().status, Attempt.objects.get().outcome) == ("CANCELLED", "abandoned")


def test_ids_are_required():
    assert run("cancel_tasks").status == 2


@pytest.mark.django_db(transaction=True)
def test_workers_are_woken_for_what_the_cancelled_task_held_back():
    head = rows.ready(ordering_key="k")
    rows.ready(ordering_key="k")
    with session(autocommit=True) as listener:
        listener.execute("LISTEN rowlock_public")
        cancel(head.pk)
        assert list(listener.notifies(timeout=5, stop_after=1))


@pytest.mark.django_db(transaction=True)
class TestLiveWorkers:
    def test_the_worker_is_asked_and_what_it_has_not_ended_is_told(self):
        with rows.living_worker() as worker:
            task = rows.processing(worker)
            outcome = cancel(task.pk, "--wait", 0)
        assert (outcome.status, outcome.data["cancelled"], outcome.data["cancelling"]) == (0, 0, [task.pk])
        asked = Task.objects.get()
        assert (asked.status, asked.cancel_requested_at is not None) == ("PROCESSING", True)
        assert asked.version == task.version + 1
        assert Intervention.objects.get().action == "cancel requested"

    def test_asking_twice_is_asking_once(self):
        with rows.living_worker() as worker:
            task = rows.processing(worker)
            cancel(task.pk, "--wait", 0)
            first = Task.objects.get()
            cancel(task.pk, "--wait", 0)
        assert (Task.objects.get().cancel_requested_at, Intervention.objects.count()) == (first.cancel_requested_at, 1)

    def test_supervisors_are_told(self):
        with rows.living_worker() as worker, session(autocommit=True) as listener:
            listener.execute("LISTEN rowlock_control_public")
            cancel(rows.processing(worker).pk, "--wait", 0)
            assert list(listener.notifies(timeout=5, stop_after=1))

    def test_the_command_waits_until_the_worker_has_ended_it(self):
        with rows.living_worker() as worker:
            task = rows.processing(worker)
            ending = threading.Thread(target=end_when_asked, args=(task.pk, "CANCELLED"))
            ending.start()
            outcome = cancel(task.pk, "--wait", 30)
            ending.join()
        assert (outcome.status, outcome.data["cancelled"], outcome.data["cancelling"]) == (0, 1, [])

    def test_f18_a_task_that_completed_first_is_refused(self):
        with rows.living_worker() as worker:
            task = rows.processing(worker)
            ending = threading.Thread(target=end_when_asked, args=(task.pk, "COMPLETED"))
            ending.start()
            outcome = cancel(task.pk, "--wait", 30)
            ending.join()
        assert (outcome.status, outcome.data["refused"][0]["reason"]) == (1, "completed")

    def test_a_worker_that_dies_meanwhile_does_not_keep_it(self):
        with rows.living_worker() as worker:
            task = rows.processing(worker)
            cancel(task.pk, "--wait", 0)
        outcome = cancel(task.pk)
        assert (outcome.data["cancelled"], Task.objects.get().status) == (1, "CANCELLED")

    def test_a_dry_run_asks_nobody(self):
        with rows.living_worker() as worker:
            task = rows.processing(worker)
            outcome = cancel(task.pk, "--dry-run")
        assert outcome.data["cancelling"] == [task.pk]
        assert Task.objects.get().version == task.version


def end_when_asked(task_id, status):
    """As the supervisor: end the task once its cancel is asked for."""
    with session(autocommit=True) as conn:
        wait_until(lambda: conn.execute("SELECT cancel_requested_at FROM tasks_task").fetchone()[0])
        conn.execute(
            "UPDATE tasks_task SET status = %s, claimed_by = NULL, finished_at = clock_timestamp() WHERE id = %s",
            [status, task_id],
        )


def test_a_filter_means_ready_tasks():
    waiting = rows.ready(queue_name="mail", ordering_key="anna", kwargs={"to": "bert"})
    rows.failed(queue_name="mail"), rows.ready(queue_name="other")
    outcome = cancel("--queue", "mail", "--text", "BERT", "--ordering-key", "anna")
    assert outcome.data["ids"] == [waiting.pk]
