"""What becomes of the tasks that dead workers held, in a sweep and when a person takes them back."""

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from tasks.exceptions import LostClaim
from tasks.models import Attempt, Queue, Task, Worker
from tasks.queue import recovery, strategies
from tasks.queue.claim import Claimer
from tests.tasks import claiming, rows
from tests.tasks.claiming import claim, ids

pytestmark = pytest.mark.django_db
LONG_AGO = timezone.now() - timedelta(minutes=5)


def sweep():
    return recovery.sweep(connection)


class TestWhatBecomesOfTheTasks:
    def test_with_attempts_left_it_is_ready_and_the_attempt_was_abandoned(self):
        task = rows.processing(rows.dead_worker("w1"), attempt=1, max_attempts=2)
        sweep()
        version, started_at = task.version, task.started_at
        task.refresh_from_db()
        assert (task.status, task.version, task.attempt, task.claimed_by) == ("READY", version + 1, 1, None)
        assert task.finished_at is None
        attempt = Attempt.objects.get()
        assert (attempt.task_id, attempt.number, attempt.worker_id) == (task.pk, 1, "w1")
        assert (attempt.outcome, attempt.exception_class) == ("abandoned", "tasks.exceptions.Abandoned")
        assert attempt.started_at == started_at

    def test_out_of_attempts_it_has_failed_with_an_abandoned_attempt(self):
        task = rows.processing(rows.dead_worker(), attempt=3, max_attempts=3)
        assert sweep().failed == [task.pk]
        task.refresh_from_db()
        assert (task.status, task.claimed_by, task.finished_at is not None) == ("FAILED", None, True)
        assert (Attempt.objects.get().outcome, Attempt.objects.get().number) == ("abandoned", 3)

    def test_a_cancel_that_was_asked_for_is_done(self):
        task = rows.processing(rows.dead_worker(), cancel_requested_at=timezone.now())
        assert sweep().cancelled == [task.pk]
        task.refresh_from_db()
        assert (task.status, task.finished_at is not None) == ("CANCELLED", True)

    @pytest.mark.parametrize(("attempt", "seconds"), [(1, 0), (2, 1), (3, 2), (4, 4), (8, 60), (32_000, 60)])
    def test_the_first_time_it_is_due_at_once_and_then_ever_later(self, attempt, seconds):
        task = rows.processing(rows.dead_worker(), attempt=attempt, max_attempts=32_767)
        sweep()
        task.refresh_from_db()
        assert (task.run_after - timezone.now()).total_seconds() == pytest.approx(seconds, abs=0.9)

    def test_f14_a_task_that_kills_its_workers_ends_failed(self):
        task = rows.ready(max_attempts=3)
        for worker_id in ("a", "b", "c"):
            Task.objects.update(run_after=LONG_AGO)
            assert ids(claim(worker_id=rows.dead_worker(worker_id))) == [task.pk]
            sweep()
        task.refresh_from_db()
        assert (task.status, task.attempt, Attempt.objects.count()) == ("FAILED", 3, 3)
        assert claim() == []

    def test_what_living_workers_hold_stays(self):
        lost = rows.processing(rows.dead_worker())
        with rows.living_worker("w1"):
            kept = rows.processing("w1")
            assert sweep().requeued == [lost.pk]
            kept.refresh_from_db()
            assert (kept.status, kept.version) == ("PROCESSING", 2)

    def test_the_rows_tell_what_changed(self):
        task = rows.processing(rows.dead_worker("w1"), queue_name="q", version=7)
        [row] = sweep().rows
        assert row == {
            "id": task.pk,
            "status": "READY",
            "queue_name": "q",
            "claimed_by": "w1",
            "version_before": 7,
            "version_after": 8,
        }


class TestQueuesThatAskAPerson:
    @pytest.fixture
    def asked(self):
        Queue.objects.create(name="payouts", recovery="ask")
        return rows.processing(rows.dead_worker(), queue_name="payouts")

    def test_a_sweep_leaves_them(self, asked):
        other = rows.processing("w-dead")
        assert sweep().requeued == [other.pk]

    def test_so_does_the_supervisor_whose_child_died(self, asked):
        assert recovery.take_back(connection, ["w-dead"]).rows == []

    def test_a_person_takes_them_back(self, asked):
        assert recovery.recover(include_ask=True).requeued == [asked.pk]

    def test_f19_they_do_not_hide_the_others(self, asked):
        for _ in range(5):
            rows.processing("w-dead", queue_name="payouts")
        other = rows.processing("w-dead")
        assert recovery.sweep(connection, limit=1).requeued == [other.pk]


class TestRecover:
    def test_in_chunks_until_nothing_is_left(self, monkeypatch):
        monkeypatch.setattr(recovery, "CHUNK", 3)
        worker = rows.dead_worker()
        tasks = ids(rows.processing(worker) for _ in range(8))
        assert recovery.recover().requeued == tasks

    @pytest.mark.parametrize("limit", [0, 1, 3, 7])
    def test_a_limit_counts_over_all_chunks(self, monkeypatch, limit):
        monkeypatch.setattr(recovery, "CHUNK", 2)
        worker = rows.dead_worker()
        for _ in range(7):
            rows.processing(worker)
        assert len(recovery.recover(limit=limit).rows) == Task.objects.ready().count() == limit

    def test_only_the_tasks_named(self):
        worker = rows.dead_worker()
        chosen, other = rows.processing(worker), rows.processing(worker)
        assert recovery.recover(task_ids=[chosen.pk]).requeued == [chosen.pk]
        other.refresh_from_db()
        assert other.status == "PROCESSING"

    def test_a_dry_run_tells_the_same_and_changes_nothing(self):
        tasks = ids([rows.processing(rows.just_died_worker("w1")), rows.processing(rows.dead_worker("w2"))])
        before = list(Task.objects.order_by("id").values()), list(Worker.objects.order_by("id").values())
        assert recovery.recover(dry_run=True).requeued == tasks
        assert (list(Task.objects.order_by("id").values()), list(Worker.objects.order_by("id").values())) == before
        assert not Attempt.objects.exists()
        assert recovery.recover().requeued == tasks

    def test_the_record_is_made_with_the_rows(self):
        task = rows.processing(rows.dead_worker())
        recorded = []
        recovery.recover(record=lambda conn, taken: recorded.extend(taken))
        assert [row["id"] for row in recorded] == [task.pk]


class TestTakeBack:
    """The supervisor has seen its child die, so there is nothing to look at twice."""

    def test_at_once(self):
        with rows.living_worker("w1"):
            task = rows.processing("w1")
            assert recovery.take_back(connection, ["w1"], reason="crashed").requeued == [task.pk]
        worker = Worker.objects.get()
        assert (worker.stopped_at is not None, worker.stop_reason) == (True, "crashed")

    def test_nobody_elses(self):
        rows.dead_worker("w2")
        rows.processing("w2")
        assert recovery.take_back(connection, ["w1"]).rows == []


def test_a_late_worker_cannot_complete_what_was_recovered():
    rows.ready()
    [claimed] = claim(worker_id=rows.just_died_worker("w1"))
    recovery.recover()
    with pytest.raises(LostClaim):
        claiming.complete(connection, "w1", claimed)
    assert ids(strategies.claim(connection, Claimer("w2"), 1)) == [claimed.id]
