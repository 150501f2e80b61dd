"""What a supervisor writes of its children late, after a death or an outage: races that no process loses on demand."""

import math
import time

import pytest

from tasks import claims, transitions
from tasks.claims import Claimer
from tasks.worker.keeper import Keeper
from tasks.worker.page import Page
from tasks.worker.supervisor import Process
from tests.tasks.worker_app import tasks as handlers


@pytest.fixture
def keeper(settings, database):
    """A supervisor's keeper on the test's database."""
    settings.ROWLOCK = {"DIRECT_DATABASE_URL": database.url}
    keeper = Keeper()
    keeper.sweep_at = math.inf  # `w1` has no presence
    yield keeper
    keeper.close()


def claim(database, count=10):
    """What worker `w1` claims now."""
    return claims.claim(database.connection, Claimer("w1"), count)


def child_running(batch, **attributes):
    """A child `w1` that has begun the first task of its batch."""
    page = Page()
    page.publish(batch)
    page.begin(0, None)
    return Process("w1", 1, page, time.monotonic(), **attributes)


@pytest.mark.parametrize(
    ("killed_for", "outcome", "status"), [("timeout", "timed_out", "READY"), ("cancel", "released", "CANCELLED")]
)
def test_what_was_meant_ends_for_the_reason_of_the_kill(database, keeper, killed_for, outcome, status):
    [task_id] = database.enqueue(handlers.work)
    keeper.bury(child_running(claim(database), killed_for=killed_for, doomed=(task_id, 1)))
    keeper.tick([])
    assert database.outcomes(task_id) == [outcome]
    assert database.task(task_id).status == status


@pytest.mark.parametrize("killed_for", ["timeout", "cancel"])
def test_what_began_before_the_signal_arrived_is_given_back(database, keeper, killed_for):
    [task_id] = database.enqueue(handlers.work)
    keeper.bury(child_running(claim(database), killed_for=killed_for, doomed=(task_id - 1, 1)))
    keeper.tick([])
    task = database.task(task_id)
    assert database.outcomes(task_id) == ["released"]
    assert (task.status, task.attempt, task.max_attempts) == ("READY", 1, 6)


def test_a_late_release_does_not_take_what_was_claimed_again(database, keeper):
    """The child gave its rows back itself and claimed them again before the supervisor could write."""
    [first, second] = database.enqueue(handlers.work, count=2)
    batch = claim(database)
    keeper.release("w1", child_running(batch).page.take_unstarted())
    transitions.release(database.connection, "w1", [(batch[1].id, batch[1].started_at)])
    assert [again.id for again in claim(database)] == [second]
    keeper.tick([])
    assert {row.status for row in (database.task(first), database.task(second))} == {"PROCESSING"}


def test_what_a_child_has_not_begun_is_given_back_once(database, keeper):
    [first, second] = database.enqueue(handlers.work, count=2)
    page = child_running(claim(database)).page
    keeper.release("w1", page.take_unstarted())
    keeper.release("w1", page.take_unstarted())
    keeper.tick([])
    assert database.task(first).status == "PROCESSING"
    task = database.task(second)
    assert (task.status, task.attempt, task.version) == ("READY", 0, 3)
    assert not page.begin(1, None), "the child must not begin what was taken from it"
