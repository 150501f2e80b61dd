"""Releasing what a hanging worker has not begun: others run it, no attempt is spent, and a late report is refused."""

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from tasks import operations
from tasks.exceptions import LostClaim
from tasks.models import Intervention, RefusedWrite, Task, Worker
from tasks.support.audit import Who
from tests.commands import run
from tests.sessions import session
from tests.tasks import claiming, rows
from tests.tasks.claiming import claim, ids

pytestmark = pytest.mark.django_db(transaction=True)
ANNA = Who("anna", "page")


@pytest.fixture
def hanging():
    """A live worker that has been on the first of its three tasks for a minute; the claims."""
    for _ in range(3):
        rows.ready()
    with rows.living_worker("w1"):
        claims = claim(worker_id="w1")
        say_it_is_on(claims[0].id, timedelta(minutes=1))
        yield claims


def say_it_is_on(task_id: int, age: timedelta) -> None:
    Worker.objects.filter(pk="w1").update(current_task_id=task_id, current_since=timezone.now() - age)


def states() -> list[tuple[str, int, int]]:
    return list(Task.objects.order_by("pk").values_list("status", "attempt", "version"))


def test_the_unstarted_go_back_with_their_attempt_and_the_running_one_stays(hanging):
    assert operations.release_unstarted("w1", ANNA, reason="it hangs").done == ids(hanging)[1:]
    assert states() == [("PROCESSING", 1, 2), ("READY", 0, 3), ("READY", 0, 3)]
    told = Intervention.objects.order_by("pk").values_list(
        "action", "target", "version_before", "version_after", "reason"
    )
    assert list(told) == [("release unstarted", f"task:{one.id}", 2, 3, "it hangs") for one in hanging[1:]]


def test_what_runs_beside_it_stays_too(hanging):
    """And what a worker of several threads has just claimed: it may have begun it, and not have said so yet."""
    ago = timezone.now() - timedelta(minutes=1)
    Worker.objects.filter(pk="w1").update(running_ids=ids(hanging)[:2])
    assert operations.release_unstarted("w1", ANNA).done == []
    Task.objects.update(started_at=ago)
    assert operations.release_unstarted("w1", ANNA).done == ids(hanging)[2:]


def test_another_worker_runs_them(hanging):
    operations.release_unstarted("w1", ANNA)
    assert ids(claim(worker_id="w2")) == ids(hanging)[1:]


def test_the_worker_that_returns_is_refused(hanging):
    operations.release_unstarted("w1", ANNA)
    with pytest.raises(LostClaim):
        claiming.complete(connection, "w1", hanging[1])
    assert RefusedWrite.objects.get().task_id == hanging[1].id
    claiming.complete(connection, "w1", hanging[0])
    assert [state[0] for state in states()] == ["COMPLETED", "READY", "READY"]


def test_the_worker_that_returns_is_refused_when_another_has_it_under_way(hanging):
    operations.release_unstarted("w1", ANNA)
    [again, _] = claim(worker_id="w2")
    with pytest.raises(LostClaim):
        claiming.complete(connection, "w1", hanging[1])
    claiming.complete(connection, "w2", again)
    assert Task.objects.get(pk=again.id).finished_by == "w2"


def test_a_row_that_is_not_as_it_was_seen_stays(hanging):
    Task.objects.filter(pk=hanging[1].id).update(priority=3)
    result = operations.release_unstarted("w1", ANNA, versions={one.id: one.version for one in hanging})
    assert result.done == [hanging[2].id]
    assert {id: refusal.code for id, refusal in result.refused.items()} == {
        hanging[0].id: "live",
        hanging[1].id: "changed",
    }


def test_a_task_of_another_worker_is_never_taken(hanging):
    other = rows.processing(rows.dead_worker("w9"))
    result = operations.release_unstarted("w1", ANNA, versions={other.pk: other.version})
    assert (result.done, result.refused[other.pk].code) == ([], "changed")


def test_a_locked_row_is_passed_by(hanging):
    with session("psql") as other:
        other.execute(f"SELECT FROM tasks_task WHERE id = {hanging[1].id} FOR UPDATE")
        result = operations.release_unstarted("w1", ANNA)
    assert (result.done, result.refused[hanging[1].id].code) == ([hanging[2].id], "locked")


def test_one_that_was_to_be_cancelled_is_cancelled(hanging):
    Task.objects.filter(pk=hanging[1].id).update(cancel_requested_at=timezone.now())
    operations.release_unstarted("w1", ANNA)
    assert states()[1][0] == "CANCELLED"


def test_with_nothing_but_the_running_one_no_other_row_is_touched(hanging):
    for one in hanging[1:]:
        claiming.complete(connection, "w1", one)
    rows.failed()
    outcome = run("release_unstarted", "w1", "--json")
    assert (outcome.status, outcome.data["ids"], outcome.data["refused"]) == (0, [], [])


def test_nothing_is_taken_from_a_worker_that_is_on_its_way(hanging):
    say_it_is_on(hanging[0].id, timedelta(seconds=2))
    with pytest.raises(operations.NotHanging):
        operations.release_unstarted("w1", ANNA)
    Worker.objects.update(current_task_id=None, current_since=None)
    with pytest.raises(operations.NotHanging):
        operations.release_unstarted("w1", ANNA)


def test_what_it_said_to_be_on_and_has_ended_is_no_hanging(hanging):
    claiming.complete(connection, "w1", hanging[0])
    with pytest.raises(operations.NotHanging):
        operations.release_unstarted("w1", ANNA)


def test_what_it_said_to_be_on_and_another_has_by_now_is_no_hanging(hanging):
    Task.objects.filter(pk=hanging[0].id).update(claimed_by="w2")
    with pytest.raises(operations.NotHanging):
        operations.release_unstarted("w1", ANNA)


def silent_for(seconds: int, claimed: int = 60) -> None:
    """The supervisor, with its lease of thirty seconds, says nothing any more, nor what its worker is on."""
    ago = timezone.now() - timedelta(seconds=seconds)
    Worker.objects.update(current_task_id=None, current_since=None, lease_seconds=30, heartbeat_at=ago)
    Task.objects.update(started_at=timezone.now() - timedelta(seconds=claimed))


def test_of_a_worker_whose_supervisor_is_silent_the_first_of_the_batch_stays(hanging):
    silent_for(16)
    assert operations.release_unstarted("w1", ANNA).done == ids(hanging)[1:]


@pytest.mark.parametrize(("seconds", "claimed"), [(14, 60), (16, 4)])
def test_one_that_was_heard_or_has_just_claimed_is_no_hanging(hanging, seconds, claimed):
    silent_for(seconds, claimed)
    with pytest.raises(operations.NotHanging):
        operations.release_unstarted("w1", ANNA)


@pytest.mark.parametrize("worker_id", ["w-dead", "nobody"])
def test_a_dead_worker_is_left_to_recovery(worker_id):
    rows.processing(rows.dead_worker())
    with pytest.raises(operations.NoSuchWorker):
        operations.release_unstarted(worker_id, ANNA)


def test_a_dry_run_and_then_the_command(hanging):
    rehearsal = run("release_unstarted", "w1", "--dry-run", "--json")
    assert (rehearsal.status, rehearsal.data["ids"]) == (0, ids(hanging)[1:])
    assert [state[0] for state in states()] == ["PROCESSING"] * 3
    outcome = run("release_unstarted", "w1", "--reason", "it hangs", "--json")
    assert (outcome.status, outcome.data["released"], outcome.data["refused"]) == (0, 2, [])
    assert set(Intervention.objects.values_list("source", "reason")) == {("command", "it hangs")}
    assert run("release_unstarted", "nobody").status == 1
