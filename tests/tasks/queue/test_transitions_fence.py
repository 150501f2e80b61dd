"""The fence: what a worker may still write once its task was taken, edited or deleted under it."""

import time
from contextlib import nullcontext

import pytest
from django.db import connection
from django.utils import timezone

from tasks import operations
from tasks.exceptions import LostClaim
from tasks.models import Attempt, RefusedWrite, Task, Throughput
from tasks.operations import Settings
from tasks.queue import completion, recovery
from tasks.queue.completion import Ending, Failure
from tasks.support.audit import Who
from tests.races.crew import again_and_again, at_once, worker_sessions
from tests.tasks import claiming, rows
from tests.tasks.claiming import claim, ids

pytestmark = pytest.mark.django_db
ANNA = Who("anna", "page")


def complete(claimed, worker_id="w1"):
    claiming.complete(connection, worker_id, claimed, "42")


def fail(claimed, worker_id="w1"):
    claiming.fail(connection, worker_id, claimed, Failure("builtins.ValueError", "", 0.0))


@pytest.fixture(params=[complete, fail])
def end(request):
    return request.param


@pytest.fixture
def claimed():
    rows.ready()
    rows.dead_worker("w1")
    [claimed] = claim()
    return claimed


def recover(task):
    assert recovery.recover().requeued == [task.pk]


def recover_and_claim(task):
    recover(task)
    assert ids(claim(worker_id="w2")) == [task.pk]


def recover_and_claim_under_the_same_id(task):
    recover(task)
    assert ids(claim(worker_id="w1")) == [task.pk]


def requeue(task):
    assert operations.requeue([task.pk], ANNA, Settings(force=True, reason="stuck")).done == [task.pk]


def cancel(task):
    assert operations.cancel([task.pk], ANNA).done == [task.pk]


def hand_over(task):
    Task.objects.update(claimed_by="w2")


TAKEN = [recover, recover_and_claim, recover_and_claim_under_the_same_id, requeue, cancel, hand_over]


class TestTakenMeanwhile:
    @pytest.mark.parametrize("take", TAKEN)
    def test_f01_the_late_write_is_refused_and_recorded(self, claimed, end, take):
        take(Task.objects.get())
        before = Task.objects.values().get()
        attempts = Attempt.objects.count()
        with pytest.raises(LostClaim, match=f"Task {claimed.id} .* w1"):
            end(claimed)
        assert Task.objects.values().get() == before
        assert (Attempt.objects.count(), Throughput.objects.count()) == (attempts, 0)
        refused = RefusedWrite.objects.get()
        assert (refused.task_id, refused.worker_id, refused.intent) == (claimed.id, "w1", end.__name__)
        assert (refused.expected_version, refused.actual_version) == (claimed.version, before["version"])

    def test_f01_of_a_deleted_row_there_is_no_actual_version(self, claimed, end):
        Task.objects.all().delete()
        with pytest.raises(LostClaim):
            end(claimed)
        refused = RefusedWrite.objects.get()
        assert (refused.task_id, refused.expected_version, refused.actual_version) == (claimed.id, 2, None)

    def test_the_right_version_does_not_help_another_worker(self, claimed, end):
        with pytest.raises(LostClaim):
            end(claimed, worker_id="w2")
        task = Task.objects.get()
        assert (task.status, task.claimed_by, RefusedWrite.objects.get().worker_id) == ("PROCESSING", "w1", "w2")

    def test_an_end_that_was_written_already_is_not_written_twice(self, claimed, end):
        """The row tells a worker that lost the answer of its own completion; a failure leaves no such mark."""
        end(claimed)
        before = Task.objects.values().get()
        with nullcontext() if end is complete else pytest.raises(LostClaim):
            end(claimed)
        assert Task.objects.values().get() == before
        assert RefusedWrite.objects.exists() == (end is not complete)
        assert Throughput.objects.get().completed + Throughput.objects.get().failed == 1

    def test_the_others_of_the_flush_are_written(self):
        rows.many(5)
        claims = claim()
        Task.objects.filter(pk=claims[2].id).update(claimed_by="w2")
        now = time.monotonic()
        result = completion.flush(
            connection, "w1", [Ending(made.id, made.version, made.attempt, now, now) for made in claims]
        )
        assert (result.completed, result.rebased, result.refused) == (4, 0, [claims[2].id])
        assert Task.objects.completed().count() == 4


EDITS = [
    "UPDATE tasks_task SET priority = 9",
    "UPDATE tasks_task SET version = version + 5",
    "UPDATE tasks_task SET version = 1",
    "UPDATE tasks_task SET run_after = run_after",
]


class TestEditedMeanwhile:
    """Somebody changed the row but not who holds it: its worker finishes on the version that it has now."""

    @pytest.mark.parametrize("edit", EDITS)
    def test_the_end_is_written(self, claimed, end, edit):
        with connection.cursor() as cursor:
            cursor.execute(edit)
        version = Task.objects.get().version
        end(claimed)
        task = Task.objects.get()
        assert (task.status, task.version) == ("COMPLETED" if end is complete else "READY", version + 1)
        assert not RefusedWrite.objects.exists()

    def test_the_flush_counts_it_as_rebased(self):
        rows.many(3)
        claims = claim()
        Task.objects.filter(pk=claims[1].id).update(priority=9)
        now = time.monotonic()
        result = completion.flush(
            connection, "w1", [Ending(made.id, made.version, made.attempt, now, now) for made in claims]
        )
        assert (result.completed, result.rebased, result.refused) == (3, 1, [])

    def test_a_request_to_cancel_is_such_an_edit(self, claimed):
        Task.objects.update(cancel_requested_at=timezone.now())
        complete(claimed)
        assert Task.objects.get().status == "COMPLETED"


@pytest.mark.django_db(transaction=True)
def test_edits_that_never_cease_refuse_nothing():
    """Between the second look at the row and the write on it there is no room for one more edit."""
    rows.many(300)
    with worker_sessions(2) as [worker, editor]:
        claims = claim(300, connection=worker)

        def edit():
            editor.execute("UPDATE tasks_task SET priority = priority WHERE status = 'PROCESSING'")

        def complete_all():
            for made in claims:
                claiming.complete(worker, "w1", made)

        at_once(complete_all, again_and_again(edit, 1.5))
    assert (Task.objects.completed().count(), RefusedWrite.objects.count()) == (300, 0)
