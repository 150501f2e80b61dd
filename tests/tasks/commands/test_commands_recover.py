"""`recover_tasks`: by hand what workers do by themselves, and what some queues leave to a person."""

import pytest

from tasks.models import Intervention, Queue, Task
from tests.commands import run
from tests.tasks import rows
from tests.tasks.commands.test_commands_requeue import forget_epoch

pytestmark = pytest.mark.django_db


def recover(*argv):
    return run("recover_tasks", "--json", *argv)


def test_nothing_to_do_is_no_failure():
    outcome = recover()
    assert (outcome.status, outcome.data["requeued"], outcome.data["failed"], outcome.data["ids"]) == (0, 0, 0, [])


def test_attempts_decide_between_ready_and_failed():
    worker = rows.dead_worker()
    first = rows.processing(worker, attempt=1)
    last = rows.processing(worker, attempt=5, max_attempts=5)
    outcome = recover("--reason", "rack lost power")
    assert (outcome.status, outcome.data["requeued"], outcome.data["failed"]) == (0, 1, 1)
    assert outcome.data["ids"] == [first.pk, last.pk]
    assert {task.pk: task.status for task in Task.objects.all()} == {first.pk: "READY", last.pk: "FAILED"}


def test_each_leaves_an_intervention():
    task = rows.processing(rows.dead_worker())
    recover("--reason", "rack lost power")
    entry = Intervention.objects.get()
    assert (entry.action, entry.target, entry.reason) == ("recover", f"task:{task.pk}", "rack lost power")
    assert (entry.version_before, entry.version_after) == (task.version, Task.objects.get().version)


def test_a_queue_that_asks_a_person_has_asked_the_one_who_runs_this():
    Queue.objects.create(name="payouts", recovery="ask")
    task = rows.processing(rows.dead_worker(), queue_name="payouts")
    assert recover().data["ids"] == [task.pk]


def test_a_limit_is_kept():
    worker = rows.dead_worker()
    for _ in range(3):
        rows.processing(worker)
    assert len(recover("--limit", 2).data["ids"]) == 2
    assert Task.objects.processing().count() == 1


def test_a_dry_run_counts_all_of_them():
    """More than one chunk: what is rolled back cannot be passed over to find the next."""
    rows.many(1001, status="PROCESSING", claimed_by=rows.dead_worker(), attempt=1)
    assert recover("--dry-run").data["requeued"] == 1001


def test_a_dry_run_changes_nothing():
    task = rows.processing(rows.dead_worker())
    assert recover("--dry-run").data["ids"] == [task.pk]
    assert Task.objects.get().version == task.version
    assert not Intervention.objects.exists()


@pytest.mark.django_db(transaction=True)
class TestWithWorkers:
    def test_a_worker_that_has_just_died_is_seen(self):
        task = rows.processing(rows.just_died_worker())
        assert recover().data["ids"] == [task.pk]

    def test_live_work_is_left_alone(self):
        with rows.living_worker() as worker:
            rows.processing(worker)
            assert recover().data["ids"] == []

    def test_who_may_still_come_back_is_named(self):
        with rows.living_worker() as worker:
            rows.processing(worker)
        forget_epoch()
        outcome = recover()
        assert (outcome.status, outcome.data["ids"]) == (0, [])
        assert [waiting["worker"] for waiting in outcome.data["waiting"]] == [worker]
        assert "left to come back" in outcome.stderr
