"""How a claimed task ends: what complete, fail, release and interrupt write."""

import json
import time
from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.utils import timezone

from tasks.models import Attempt, RefusedWrite, Task
from tasks.queue import completion, release
from tasks.queue.completion import Ending, Failure
from tests.tasks import claiming, rows
from tests.tasks.claiming import claim, ids

pytestmark = pytest.mark.django_db
BROKEN = Failure("builtins.ValueError", "Traceback …", retry_seconds=600)


def ending(claimed, *, ran=0.0, ago=0.0, **what) -> Ending:
    """The end of a run that took `ran` seconds and was over `ago` seconds ago."""
    finished = time.monotonic() - ago
    return Ending(claimed.id, claimed.version, claimed.attempt, finished - ran, finished, **what)


def flush(*endings):
    return completion.flush(connection, "w1", endings)


def seconds_between(early, late) -> float:
    return (late - early).total_seconds()


class TestComplete:
    def test_the_row_is_over_and_nobodys(self):
        rows.ready()
        [claimed] = claim()
        claiming.complete(connection, "w1", claimed, '{"a": [1, null]}')
        task = Task.objects.get()
        assert (task.status, task.version, task.attempt, task.claimed_by) == ("COMPLETED", 3, 1, None)
        assert (task.finished_by, task.return_value) == ("w1", {"a": [1, None]})
        assert not Attempt.objects.exists()

    def test_it_tells_when_the_task_really_ran_and_not_when_that_was_written(self):
        rows.ready()
        [claimed] = claim()
        flush(ending(claimed, ran=30, ago=60))
        task = Task.objects.get()
        assert seconds_between(task.started_at, task.finished_at) == pytest.approx(30, abs=0.01)
        assert seconds_between(task.finished_at, timezone.now()) == pytest.approx(60, abs=5)

    def test_each_task_of_a_flush_gets_its_own_value(self):
        rows.many(20)
        claims = claim(20)
        result = flush(*(ending(claimed, return_value=json.dumps(claimed.id)) for claimed in reversed(claims)))
        assert (result.completed, result.failed, result.rebased, result.refused) == (20, 0, 0, [])
        assert all(task.return_value == task.pk for task in Task.objects.all())

    def test_a_cancel_that_came_too_late_is_forgotten(self):
        rows.ready()
        [claimed] = claim()
        Task.objects.update(cancel_requested_at=timezone.now())
        claiming.complete(connection, "w1", claimed)
        task = Task.objects.get()
        assert (task.status, task.cancel_requested_at) == ("COMPLETED", None)


class TestFail:
    def test_with_attempts_left_it_is_ready_again_after_its_backoff(self):
        rows.ready(max_attempts=2)
        [claimed] = claim()
        claiming.fail(connection, "w1", claimed, BROKEN)
        task = Task.objects.get()
        assert (task.status, task.version, task.attempt, task.claimed_by) == ("READY", 3, 1, None)
        assert task.finished_at is None
        assert seconds_between(timezone.now(), task.run_after) == pytest.approx(600, abs=5)

    def test_without_it_has_failed(self):
        task = rows.ready(max_attempts=1)
        [claimed] = claim()
        claiming.fail(connection, "w1", claimed, BROKEN)
        run_after = task.run_after
        task.refresh_from_db()
        assert (task.status, task.attempt, task.claimed_by, task.run_after) == ("FAILED", 1, None, run_after)
        assert task.finished_at >= task.started_at

    def test_a_cancel_that_was_asked_for_beats_the_retry(self):
        task = rows.ready(max_attempts=5)
        [claimed] = claim()
        Task.objects.update(cancel_requested_at=timezone.now())
        claiming.fail(connection, "w1", claimed, BROKEN)
        run_after = task.run_after
        task.refresh_from_db()
        assert (task.status, task.claimed_by, task.run_after) == ("CANCELLED", None, run_after)
        assert task.finished_at is not None
        assert claim() == []

    def test_the_attempt_is_kept_with_its_reason(self):
        task = rows.ready(attempt=1, max_attempts=2)
        [claimed] = claim()
        timed_out = Failure("tasks.exceptions.TimedOut", "Ended after 3 s", 0.0, outcome="timed_out")
        flush(ending(claimed, ran=3, ago=9, failure=timed_out))
        attempt = Attempt.objects.get()
        assert (attempt.task_id, attempt.number, attempt.worker_id) == (task.pk, 2, "w1")
        assert (attempt.outcome, attempt.exception_class) == ("timed_out", "tasks.exceptions.TimedOut")
        assert attempt.traceback == "Ended after 3 s"
        assert seconds_between(attempt.started_at, attempt.finished_at) == pytest.approx(3, abs=0.01)
        assert seconds_between(attempt.finished_at, timezone.now()) == pytest.approx(9, abs=5)

    def test_a_flush_may_mix_what_succeeded_and_what_failed(self):
        rows.many(4, max_attempts=1)
        [good], [bad], [fine], [broken] = (claim() for _ in range(4))
        endings = [ending(good), ending(bad, failure=BROKEN), ending(fine), ending(broken, failure=BROKEN)]
        result = flush(*endings)
        assert (result.completed, result.failed, result.refused, result.locked) == (2, 2, [], [])
        assert ids(Task.objects.completed().order_by("id")) == ids([good, fine])
        assert ids(Task.objects.failed().order_by("id")) == ids([bad, broken])
        assert set(Attempt.objects.values_list("task_id", flat=True)) == {bad.id, broken.id}

    def test_a_dead_childs_task_is_failed_without_knowing_its_version(self):
        rows.ready()
        [claimed] = claim()
        Task.objects.update(priority=3)
        completion.end_running(connection, "w1", claimed.id, claimed.attempt, 12.0, BROKEN)
        task = Task.objects.get()
        assert (task.status, Attempt.objects.get().outcome) == ("READY", "failed")
        assert seconds_between(task.started_at, timezone.now()) == pytest.approx(12, abs=5)
        assert not RefusedWrite.objects.exists()

    def test_and_left_alone_once_it_is_somebody_elses(self):
        rows.ready()
        [claimed] = claim()
        Task.objects.update(claimed_by="w2")
        completion.end_running(connection, "w1", claimed.id, claimed.attempt, 12.0, BROKEN)
        assert (Task.objects.get().claimed_by, RefusedWrite.objects.count()) == ("w2", 1)


class TestRelease:
    """Claimed ahead and never begun: as if it had not been claimed."""

    @pytest.fixture
    def claimed(self):
        rows.ready(attempt=2)
        [claimed] = claim()
        return claimed

    def release(self, claimed, **options):
        return release.release(connection, "w1", [(claimed.id, claimed.claimed_at())], **options)

    def test_the_attempt_is_given_back(self, claimed):
        assert self.release(claimed) == 1
        task = Task.objects.get()
        assert (task.status, task.attempt, task.version, task.claimed_by) == ("READY", 2, 3, None)
        assert (task.started_at, task.run_after) == (None, datetime.fromisoformat(claimed.run_after))

    def test_an_edit_meanwhile_does_not_strand_it(self, claimed):
        Task.objects.update(priority=7)
        assert self.release(claimed) == 1
        assert Task.objects.get().status == "READY"

    @pytest.mark.parametrize("change", [{"claimed_by": "w2"}, {"started_at": timezone.now()}])
    def test_another_claim_is_not_released(self, claimed, change):
        Task.objects.update(**change)
        assert self.release(claimed) == 0
        assert Task.objects.get().status == "PROCESSING"

    def test_once_is_enough(self, claimed):
        assert [self.release(claimed), self.release(claimed)] == [1, 0]
        assert Task.objects.get().attempt == 2

    def test_a_cancel_that_was_asked_for_is_done(self, claimed):
        Task.objects.update(cancel_requested_at=timezone.now())
        self.release(claimed)
        task = Task.objects.get()
        assert (task.status, task.attempt, task.finished_at is not None) == ("CANCELLED", 2, True)

    @pytest.mark.parametrize(("age", "seconds"), [(0, 5), (60, 30), (86_400, 300)])
    def test_a_parked_one_comes_back_the_later_the_older_it_is(self, claimed, age, seconds):
        Task.objects.update(created_at=timezone.now() - timedelta(seconds=age))
        self.release(claimed, parked_for=release.UNKNOWN)
        assert seconds_between(timezone.now(), Task.objects.get().run_after) == pytest.approx(seconds, abs=3)
        assert claim() == []

    def test_a_parked_one_is_recorded_once_by_each_worker(self, claimed):
        self.release(claimed, parked_for=release.UNKNOWN)
        for worker_id in ("w1", "w2", "w2"):
            Task.objects.update(run_after=timezone.now())
            [again] = claim(worker_id=worker_id)
            release.release(connection, worker_id, [(again.id, again.claimed_at())], parked_for=release.UNKNOWN)
        found = Attempt.objects.order_by("id").values_list("worker_id", "number", "outcome", "exception_class")
        assert list(found) == [(worker, 3, "released", release.UNKNOWN) for worker in ("w1", "w2")]
        assert Task.objects.get().attempt == 2

    def test_one_that_was_only_claimed_ahead_is_not_recorded(self, claimed):
        self.release(claimed)
        assert not Attempt.objects.exists()

    def test_nothing_to_release_asks_nobody(self, django_assert_num_queries):
        with django_assert_num_queries(0):
            assert release.release(connection, "w1", []) == 0


class TestReleaseUnknown:
    """A claim that committed while its answer was lost."""

    def test_what_the_worker_does_not_hold_is_given_back(self):
        rows.many(3)
        held, *lost = claim()
        assert sorted(release.release_unknown(connection, "w1", [held.id])) == ids(lost)
        assert {task.attempt for task in Task.objects.ready()} == {0}
        assert ids(Task.objects.processing()) == [held.id]
        assert ids(claim()) == ids(lost)

    def test_what_others_hold_is_not(self):
        rows.ready()
        claim(worker_id="w2")
        assert release.release_unknown(connection, "w1", []) == []

    def test_a_cancel_that_was_asked_for_is_done(self):
        rows.ready()
        claim()
        Task.objects.update(cancel_requested_at=timezone.now())
        release.release_unknown(connection, "w1", [])
        assert Task.objects.get().status == "CANCELLED"


class TestInterrupt:
    """Ended on purpose while it ran: the attempt keeps its number, and the allowance grows by it."""

    @pytest.fixture
    def claimed(self):
        rows.ready(max_attempts=1)
        [claimed] = claim()
        return claimed

    def interrupt(self, claimed, worker_id="w1"):
        return release.interrupt(connection, worker_id, claimed.id, claimed.attempt)

    def test_it_costs_no_attempt_even_if_that_was_the_last(self, claimed):
        assert self.interrupt(claimed)
        task = Task.objects.get()
        assert (task.status, task.attempt, task.max_attempts, task.claimed_by) == ("READY", 1, 2, None)
        [again] = claim()
        assert again.attempt == 2

    def test_the_attempt_is_told(self, claimed):
        self.interrupt(claimed)
        attempt = Attempt.objects.get()
        assert (attempt.number, attempt.outcome, attempt.worker_id) == (1, "released", "w1")
        assert attempt.started_at == claimed.claimed_at()

    def test_a_cancel_is_done(self, claimed):
        Task.objects.update(cancel_requested_at=timezone.now())
        assert self.interrupt(claimed)
        task = Task.objects.get()
        assert (task.status, task.finished_at is not None) == ("CANCELLED", True)

    @pytest.mark.parametrize("change", [{"claimed_by": "w2"}, {"attempt": 2, "max_attempts": 2}])
    def test_another_claim_is_left_alone(self, claimed, change):
        Task.objects.update(**change)
        assert not self.interrupt(claimed)
        assert Task.objects.get().status == "PROCESSING"
        assert not Attempt.objects.exists()
