"""`requeue_tasks`: what runs again, with which allowance, what is refused, and what the audit and the attempts keep."""

import pytest
from django.db import connection
from django.utils import timezone

from tasks.models import Attempt, Intervention, Task, Worker
from tests.commands import run
from tests.sessions import session
from tests.tasks import rows
from tests.tasks.handlers import fail_once

pytestmark = pytest.mark.django_db


def requeue(*argv):
    return run("requeue_tasks", "--json", *argv)


def reasons(outcome):
    return {refusal["id"]: refusal["reason"] for refusal in outcome.data["refused"]}


@pytest.mark.parametrize("state", [rows.failed, rows.cancelled])
def test_what_ended_badly_is_ready_at_once_with_a_fresh_allowance(state):
    task = state(attempt=5, run_after="2031-01-01T00:00:00Z")
    outcome = requeue(task.pk)
    task.refresh_from_db()
    assert (outcome.status, outcome.data) == (0, {"requeued": 1, "refused": [], "ids": [task.pk]})
    assert (task.status, task.finished_at, task.attempt, task.max_attempts) == ("READY", None, 5, 10)
    assert Task.objects.ready().get(run_after__lte=timezone.now()) == task


def test_the_allowance_is_what_the_task_declares():
    task = rows.failed(task_path=fail_once.module_path, attempt=1, max_attempts=1)
    requeue(task.pk)
    task.refresh_from_db()
    assert (task.attempt, task.max_attempts) == (1, 2)


def test_a_requeued_row_can_be_claimed(settings):
    """Fault: a READY row without an attempt left makes every claim that meets it fail."""
    settings.ROWLOCK = {"MAX_ATTEMPTS": 0}
    task = rows.failed(attempt=5, max_attempts=5)
    requeue(task.pk)
    task.refresh_from_db()
    assert task.attempt < task.max_attempts


def test_a_count_that_the_column_cannot_hold_is_refused():
    task = rows.failed(attempt=32_763, max_attempts=32_763)
    outcome = requeue(task.pk)
    assert (outcome.status, reasons(outcome)) == (1, {task.pk: "exhausted"})


def test_a_cancel_that_was_asked_for_is_forgotten():
    task = rows.processing("w-nobody", cancel_requested_at="2026-01-01T00:00:00Z")
    requeue(task.pk)
    task.refresh_from_db()
    assert (task.status, task.cancel_requested_at) == ("READY", None)


def test_each_changed_row_leaves_one_intervention():
    task = rows.failed(version=7)
    requeue(task.pk, "--reason", "the bank is back")
    entry = Intervention.objects.get()
    assert entry.actor.count("@") == 1
    assert (entry.source, entry.action, entry.target) == ("command", "requeue", f"task:{task.pk}")
    assert (entry.reason, entry.version_before, entry.version_after) == ("the bank is back", 7, 8)


@pytest.mark.parametrize(("state", "reason"), [(rows.ready, "ready"), (rows.completed, "completed")])
def test_what_needs_no_requeue_is_refused_and_stays(state, reason):
    task = state()
    outcome = requeue(task.pk)
    assert (outcome.status, reasons(outcome)) == (1, {task.pk: reason})
    assert Task.objects.get().version == task.version
    assert not Intervention.objects.exists()


def test_an_unknown_id_is_refused_and_the_others_go_on():
    task = rows.failed()
    outcome = requeue(task.pk, task.pk + 1)
    assert (outcome.status, outcome.data["ids"], reasons(outcome)) == (1, [task.pk], {task.pk + 1: "missing"})


def test_an_id_named_twice_is_requeued_once():
    task = rows.failed()
    assert requeue(task.pk, task.pk).data["ids"] == [task.pk]


def test_a_refusal_says_what_the_task_is_now():
    task = rows.completed(version=3)
    [refusal] = requeue(task.pk).data["refused"]
    assert (refusal["status"], refusal["version"]) == ("COMPLETED", 3)
    assert "enqueue it again" in refusal["message"]


@pytest.mark.parametrize("worker", [rows.dead_worker, lambda: "w-never-registered"])
def test_the_task_of_a_dead_worker_is_requeued_and_its_attempt_told(worker):
    task = rows.processing(worker(), attempt=2)
    outcome = requeue(task.pk)
    task.refresh_from_db()
    assert (outcome.status, task.status, task.claimed_by, task.attempt) == (0, "READY", None, 2)
    attempt = Attempt.objects.get()
    assert (attempt.number, attempt.outcome, attempt.started_at) == (2, "abandoned", task.started_at)


class TestFilters:
    def test_without_ids_and_filters_it_is_a_usage_error(self):
        rows.failed()
        outcome = run("requeue_tasks")
        assert (outcome.status, Task.objects.ready().count()) == (2, 0)

    @pytest.mark.parametrize("argv", [("--status", "COMPLETED"), ("--status", "FAILED", "--status", "completed")])
    def test_all_completed_tasks_are_a_usage_error(self, argv):
        assert run("requeue_tasks", *argv).status == 2

    def test_a_filter_means_failed_tasks(self):
        failed = rows.failed(queue_name="payouts")
        rows.cancelled(queue_name="payouts")
        rows.failed(queue_name="other")
        assert requeue("--queue", "payouts").data == {"requeued": 1, "refused": [], "ids": [failed.pk]}

    def test_a_status_of_its_own_is_taken_in_any_case(self):
        cancelled = rows.cancelled()
        rows.failed()
        assert requeue("--status", "cancelled").data["ids"] == [cancelled.pk]

    def test_conditions_hold_together_and_repeat(self):
        mail = rows.failed(task_path="shop.mail", queue_name="a")
        bill = rows.failed(task_path="shop.bill", queue_name="b")
        rows.failed(task_path="shop.mail", queue_name="c")
        argv = ("--task", "shop.mail", "--task", "shop.bill", "--queue", "a", "--queue", "b")
        assert requeue(*argv).data["ids"] == [mail.pk, bill.pk]

    def test_the_error_is_that_of_the_latest_attempt(self):
        first, second = rows.failed(), rows.failed()
        for task, errors in ((first, ["ValueError", "TimeoutError"]), (second, ["TimeoutError", "ValueError"])):
            for number, error in enumerate(errors, start=1):
                Attempt.objects.create(task=task, number=number, worker_id="w", outcome="failed", exception_class=error)
        assert requeue("--error", "timeouterror").data["ids"] == [first.pk]

    def test_the_failure_is_that_of_the_latest_attempt(self):
        first, second = rows.failed(), rows.failed()
        for task, kind in ((first, "a"), (second, "b")):
            Attempt.objects.create(
                task=task, number=1, worker_id="w", outcome="failed", fingerprint=f"{kind * 12} app/tasks.py:f"
            )
        assert requeue("--failure", "a" * 12).data["ids"] == [first.pk]
        refused = requeue("--failure", "a")
        assert (refused.status, "hash" in refused.stderr) == (2, True)

    def test_the_error_is_found_in_the_traceback_and_taken_literally(self):
        for text in ("100% of 3_4 attempts", "100 of 344 attempts"):
            Attempt.objects.create(task=rows.failed(), number=1, worker_id="w", outcome="failed", traceback=text)
        found = Task.objects.get(attempts__traceback__contains="%")
        assert requeue("--error", "100% OF 3_4").data["ids"] == [found.pk]

    def test_an_age_counts_from_creation(self):
        rows.failed(created_at="2026-01-01T00:00:00Z")
        young = rows.failed()
        requeue("--older-than", "1h")
        assert Task.objects.failed().get() == young

    def test_ids_that_do_not_match_the_filter_are_refused(self):
        here, there = rows.failed(queue_name="here"), rows.failed(queue_name="there")
        outcome = requeue(here.pk, there.pk, "--queue", "here")
        assert (outcome.data["ids"], reasons(outcome)) == ([here.pk], {there.pk: "unmatched"})


@pytest.mark.django_db(transaction=True)
class TestLiveWorkers:
    def test_the_task_of_a_live_worker_is_refused(self):
        with rows.living_worker() as worker:
            task = rows.processing(worker)
            outcome = requeue(task.pk)
        assert (outcome.status, reasons(outcome)) == (1, {task.pk: "live"})
        assert Task.objects.get().version == task.version

    def test_force_without_a_reason_is_a_usage_error(self):
        with rows.living_worker() as worker:
            task = rows.processing(worker)
            outcome = requeue(task.pk, "--force", "--reason", " ")
        assert (outcome.status, Task.objects.processing().count()) == (2, 1)

    def test_force_takes_it_and_tells_the_attempt_as_released(self):
        with rows.living_worker() as worker:
            task = rows.processing(worker)
            outcome = requeue(task.pk, "--force", "--reason", "it hangs")
        assert (outcome.status, Task.objects.get().status, Attempt.objects.get().outcome) == (0, "READY", "released")

    def test_a_worker_that_has_just_died_is_seen_by_two_looks(self):
        task = rows.processing(rows.just_died_worker())
        outcome = requeue(task.pk)
        assert (outcome.status, Task.objects.get().status, Attempt.objects.get().outcome) == (0, "READY", "abandoned")
        assert Worker.objects.get().stop_reason == "convicted"

    def test_a_dry_run_sees_the_same_death_and_keeps_nothing(self):
        task = rows.processing(rows.just_died_worker())
        outcome = requeue(task.pk, "--dry-run")
        assert outcome.data == {"requeued": 1, "refused": [], "ids": [task.pk]}
        assert Worker.objects.get().stopped_at is None
        assert Task.objects.get().version == task.version
        assert not Intervention.objects.exists()
        assert not Attempt.objects.exists()

    def test_a_worker_that_lost_its_presence_in_a_restart_may_still_come_back(self):
        with rows.living_worker() as worker:
            task = rows.processing(worker)
        forget_epoch()
        outcome = requeue(task.pk)
        assert reasons(outcome) == {task.pk: "waiting"}
        assert " s left to come back" in outcome.data["refused"][0]["message"]

    def test_workers_are_woken(self):
        task = rows.failed()
        with session(autocommit=True) as listener:
            listener.execute("LISTEN rowlock_public")
            requeue(task.pk)
            assert list(listener.notifies(timeout=5, stop_after=1))


def forget_epoch():
    """As after a restart of the database: the presence that the workers took was of another epoch."""
    with connection.cursor() as cursor:
        cursor.execute("UPDATE tasks_worker SET presence_epoch = 'before'")
        cursor.execute("UPDATE tasks_epoch SET first_seen_at = clock_timestamp()")


def test_requeued_tasks_can_be_spread_over_some_time():
    ids = [rows.failed().pk for _ in range(4)]
    requeue("--status", "FAILED", "--spread", "2m")
    due = [Task.objects.get(pk=task_id).run_after for task_id in ids]
    assert [round((at - due[0]).total_seconds()) for at in due] == [0, 30, 60, 90]
