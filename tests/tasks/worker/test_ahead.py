"""While much is to be done the server claims the next batch beside the running one, and no death makes that dearer."""

import math
import os
import time
from dataclasses import replace

import psycopg
import pytest

from tasks.queue import presence
from tasks.queue.completion import Ending
from tasks.queue.shortcut import MANY, Shortcut
from tasks.worker import options
from tasks.worker.fetch import CHECK_SECONDS, MUCH_WORK
from tasks.worker.leader import LeaderToken
from tasks.worker.maintenance import Child, Maintenance
from tasks.worker.options import Options
from tasks.worker.process import WorkerProcess
from tasks.worker.shared_state import Allowance, SharedState
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

HELD = "SELECT id FROM tasks_task WHERE status = 'PROCESSING' ORDER BY id"
BEGINNING = Shortcut({("default", 0): ("-infinity", 0)}, math.inf)


@pytest.fixture
def maintenance(settings, database):
    settings.ROWLOCK = {"DIRECT_DATABASE_URL": database.url}
    maintenance = Maintenance()
    maintenance.sweep_at = math.inf
    yield maintenance
    maintenance.close()


@pytest.fixture
def child(settings, database):
    """In the middle of much work: MANY tasks have ended and are not written yet, three times as many are due."""
    settings.ROWLOCK = {"DIRECT_DATABASE_URL": database.url}
    lifeline, busy = os.pipe()
    child = WorkerProcess("w1", Options(), SharedState(), Allowance(None), LeaderToken(), lifeline=lifeline, busy=busy)
    child.state.renew_lease()
    assert child.session.open(lambda connection: options.register(connection, "w1", Options()))
    child.fetcher.full_claims = MUCH_WORK
    child.fetcher.size.value = child.fetcher.size.ramp = child.fetcher.size.maximum = MANY
    database.enqueue(handlers.quick, count=4 * MANY)
    end(child, child.fetcher.next_batch())
    child.fetcher.claimer.shortcut = BEGINNING
    yield child
    child.completer.close()
    child.session.forget()
    for descriptor in (lifeline, busy, child.wake_read, child.wake_write):
        os.close(descriptor)


def end(child, batch):
    for claim in batch:
        child.completer.add(Ending(claim.id, claim.version, claim.attempt, 0.0, 0.0))


def begin(child, other=None):
    """Claim, publish and send as for a batch that runs; its first task has begun and has not ended.

    The claim that is sent has to wait for the session `other`.
    """
    batch = child.fetcher.next_batch()
    if other:
        other.execute("LOCK TABLE tasks_queue")
    child.state.publish(batch, child.completer.ids())
    child.fetcher.work_ahead()
    assert child.state.begin(0, None)
    return batch


def process(child):
    return Child("w1", 1, child.state, time.monotonic())


def ids(rows):
    return [row.id for row in rows]


def is_free(database, batch):
    """READY, and no attempt is spent."""
    statement = "SELECT DISTINCT status, attempt FROM tasks_task WHERE id = ANY(%s)"
    return [tuple(row) for row in database.rows(statement, ids(batch))] == [("READY", 0)]


def held_behind(database, batch):
    """What stands PROCESSING and is of a later claim than this batch."""
    return [row for row in database.rows(HELD) if row.id > batch[-1].id]


def claimed_ahead(database, batch):
    """The same, once the server has claimed it."""
    return wait_until(lambda: held_behind(database, batch))


def test_the_server_claims_the_next_batch_while_this_one_runs(database, child):
    batch = begin(child)
    ahead = claimed_ahead(database, batch)
    assert ids(ahead) == [claim.id + MANY for claim in batch]
    end(child, batch)
    assert ids(child.fetcher.next_batch()) == ids(ahead)
    assert child.fetcher.full_claims == MUCH_WORK + 3, "it was full"
    assert len(held_behind(database, batch)) == MANY, "nothing was claimed beside it"


def test_the_session_answers_others_meanwhile(database, child):
    batch = begin(child)
    assert child.session.run(lambda connection: connection.execute("SELECT 7").fetchone()) == (7,)
    assert ids(child.fetcher.next_batch()) == [claim.id + MANY for claim in batch]


def test_what_is_not_yet_known_is_read_by_the_background_thread(database, child):
    """So that the server's answer does not wait for the end of a long task."""
    batch = begin(child)
    assert child.session.has_input()
    child.background.begin_batch()
    child.background.work()
    assert child.fetcher.ahead_ids() == {claim.id + MANY for claim in batch}


@pytest.mark.parametrize("hindrance", ["few are wanted", "a limited number", "at the beginning", "little work"])
def test_nothing_is_claimed_ahead(database, child, hindrance):
    if hindrance == "few are wanted":
        child.fetcher.size.value = MANY - 1
    elif hindrance == "a limited number":
        child.fetcher.options = replace(child.options, max_tasks=10 * MANY)
    batch = child.fetcher.next_batch()
    if hindrance == "at the beginning":
        child.fetcher.claimer.shortcut = None
    elif hindrance == "little work":
        child.fetcher.full_claims = MUCH_WORK - 1
    child.state.publish(batch, child.completer.ids())
    child.fetcher.work_ahead()
    child.session.run(lambda connection: connection.execute("SELECT"))
    assert held_behind(database, batch) == []
    assert not child.state.has_ahead()


def test_while_a_task_lasts_it_is_given_back(database, maintenance, child):
    batch = begin(child)
    ahead = claimed_ahead(database, batch)
    maintenance.release("w1", child.state.take_unstarted())
    maintenance.tick([process(child)])
    assert is_free(database, [*batch[1:], *ahead])
    assert not child.state.begin(1, None)
    maintenance.tick([process(child)])
    assert database.value("SELECT max(version) FROM tasks_task WHERE id = %s", ahead[0].id) == 3, "once"
    end(child, batch[:1])
    child.end_batch(batch[1:], [])
    assert ids(child.fetcher.next_batch()) == ids([*batch[1:], ahead[0]]), "claimed anew, by their order"


def test_so_it_is_when_the_last_task_of_its_batch_lasts(database, maintenance, child):
    batch = begin(child)
    ahead = claimed_ahead(database, batch)
    assert all(child.state.begin(row, None) for row in range(MANY))
    maintenance.release("w1", child.state.take_unstarted())
    maintenance.tick([process(child)])
    assert is_free(database, ahead)
    end(child, batch)
    assert ids(child.fetcher.next_batch()) == ids(ahead)
    assert {row.attempt for row in database.rows("SELECT attempt FROM tasks_task WHERE id = ANY(%s)", ids(ahead))} == {
        1
    }


def test_a_claim_that_is_under_way_is_given_back_once_it_is_over(database, maintenance, child):
    with psycopg.connect(database.url) as other:
        batch = begin(child, other)
        maintenance.release("w1", child.state.take_unstarted())
        maintenance.tick([process(child)])
        assert held_behind(database, batch) == []
        assert child.state.has_ahead(), "it is asked for again"
    ahead = claimed_ahead(database, batch)
    maintenance.tick([process(child)])
    assert is_free(database, ahead)


def test_what_the_child_claims_by_itself_is_not_taken_for_it(database, maintenance, child):
    """The long task ends while the supervisor looks."""
    batch = begin(child)
    claimed_ahead(database, batch)
    child.state.take_unstarted()
    assert sorted(child.state.listed()) == sorted({*ids(batch), *child.completer.ids()})
    end(child, batch[:1])
    child.end_batch(batch[1:], [])
    again = child.fetcher.next_batch()
    assert not child.state.take_ahead()
    maintenance.tick([process(child)])
    assert ids(database.rows(HELD)) == ids(again)


def test_what_was_given_back_does_not_run(database, maintenance, child):
    batch = begin(child)
    ahead = claimed_ahead(database, batch)
    child.state.take_unstarted()
    maintenance.tick([process(child)])
    assert is_free(database, ahead)
    taken = child.session.run(child.fetcher.take_ahead)
    assert taken == []


def test_after_a_void_batch_the_child_gives_back_what_the_supervisor_has_not_seen(database, child):
    batch = begin(child)
    ahead = claimed_ahead(database, batch)
    child.state.take_unstarted()
    assert child.session.run(child.fetcher.take_ahead) == []
    assert is_free(database, ahead)


def test_a_child_that_died_has_not_begun_it(database, maintenance, child):
    batch = begin(child)
    ahead = claimed_ahead(database, batch)
    maintenance.take_back(process(child))
    maintenance.tick([])
    assert is_free(database, [*batch[1:], *ahead])
    assert database.outcomes(batch[0].id) == ["abandoned"]


def test_a_dead_child_is_looked_after_until_its_claim_is_over(database, maintenance, child):
    """Its presence is held by the same session that claims."""
    batch = child.fetcher.next_batch()
    child.state.publish(batch, child.completer.ids())
    maintenance.take_back(process(child))
    maintenance.tick([])
    child.fetcher.work_ahead()
    ahead = claimed_ahead(database, batch)
    maintenance.tick([])
    assert ids(held_behind(database, batch)) == ids(ahead), "the session lives"
    child.session.forget()
    wait_until(lambda: not presence.states(["w1"], database.connection)["w1"].held)
    maintenance.tick([])
    assert is_free(database, ahead)


def test_it_is_not_taken_for_a_claim_whose_answer_was_lost(database, child):
    batch = begin(child)
    ahead = claimed_ahead(database, batch)
    end(child, batch)
    child.fetcher.checked_at -= CHECK_SECONDS
    assert ids(child.fetcher.next_batch()) == ids(ahead)
    assert len(held_behind(database, batch)) == MANY


def test_a_worker_that_leaves_gives_it_back(database, child):
    batch = begin(child)
    ahead = claimed_ahead(database, batch)
    end(child, batch)
    child.leave()
    assert is_free(database, ahead)
    assert (child.state.completed, database.statuses()["PROCESSING"]) == (2 * MANY, 0)


def test_when_the_session_is_lost_it_is_given_back(database, child):
    batch = begin(child)
    ahead = claimed_ahead(database, batch)
    child.session.connection.pgconn.finish()
    end(child, batch)
    with pytest.raises(psycopg.OperationalError):
        child.fetcher.next_batch()
    again = wait_until(lambda: try_to_claim(child))
    assert ids(again) == ids(ahead)
    assert not child.state.has_ahead()
    assert {claim.attempt for claim in again} == {1}


def try_to_claim(child):
    try:
        return child.fetcher.next_batch()
    except psycopg.OperationalError:  # the next attempt is not due
        return None


def test_an_error_of_the_claim_costs_nothing(database, child):
    with psycopg.connect(database.url) as other:
        batch = begin(child, other)
        end(child, batch)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            child.fetcher.next_batch()
    assert ids(child.fetcher.next_batch()) == [claim.id + MANY for claim in batch]
    assert not child.state.has_ahead()
