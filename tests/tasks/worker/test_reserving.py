"""While much is to be done batches are reserved by locks and a note; nothing that goes wrong makes that dearer."""

import math
import os
import time
from dataclasses import astuple, replace

import psycopg
import pytest

from tasks import claims, recovery, reservation
from tasks.claimer import Claimer
from tasks.database import WORKER_SESSION
from tasks.flush import Ending, Failure
from tasks.shortcut import MANY, Shortcut
from tasks.worker import outbox, registration, reserving
from tasks.worker.child import MUCH_WORK, Child
from tasks.worker.keeper import Keeper
from tasks.worker.lookout import Lookout
from tasks.worker.options import Allowance, Options
from tasks.worker.page import COMPLETED, FAILED, Page
from tasks.worker.reserving import LONGEST_SECONDS
from tasks.worker.supervisor import Process
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

BEGINNING = Shortcut("default", 0, "-infinity", 0, math.inf)
STATES = "SELECT DISTINCT status, attempt, coalesce(claimed_by, '') FROM tasks_task WHERE id = ANY(%s)"
# Without locking anything: a reservation would pass over it.
LOCKED = """
SELECT id FROM tasks_task
WHERE status = 'READY' AND xmax IN (SELECT transactionid FROM pg_locks WHERE locktype = 'transactionid' AND granted)
ORDER BY id
"""
TOLD = """
SELECT id, task_path, queue_name, priority, args::text, kwargs::text, version + 1 AS version, attempt + 1 AS attempt,
    max_attempts, ordering_key, created_at::text, run_after::text
FROM tasks_task WHERE id = ANY(%s) ORDER BY id
"""
NOTED_AT = "SELECT reserved_at::text FROM tasks_reservation WHERE members <> ''"
NOTED = "SELECT count(*) FROM tasks_reservation WHERE members <> ''"
END_SESSIONS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = 'rowlock:worker:w1' AND state LIKE 'idle in transaction%%' AND datname = current_database()
"""
READY, CLAIMED, DONE = ("READY", 0, ""), ("PROCESSING", 1, "w1"), ("COMPLETED", 1, "")


@pytest.fixture
def keeper(settings, database):
    settings.ROWLOCK = {"DIRECT_DATABASE_URL": database.url}
    keeper = Keeper()
    keeper.sweep_at = math.inf
    yield keeper
    keeper.close()


@pytest.fixture
def other(database):
    """Somebody else who claims."""
    with psycopg.connect(database.url, autocommit=True, options=WORKER_SESSION) as connection:
        yield connection


@pytest.fixture
def child(settings, database, monkeypatch, request):
    """In the middle of much work: MANY tasks have ended and are not written yet, five times as many are due."""
    # A busy machine may stand still for longer than these sessions may.
    seconds = "2s" if "stand_still" in request.node.name else "30s"
    monkeypatch.setattr(reserving, "STANDSTILL", reserving.STANDSTILL.replace("500ms", seconds))
    settings.ROWLOCK = {"DIRECT_DATABASE_URL": database.url}
    lifeline, busy = os.pipe()
    child = Child("w1", Options(), Page(), Allowance(None), Lookout(), lifeline=lifeline, busy=busy)
    child.page.beat()
    assert child.session.open(lambda connection: registration.register(connection, "w1", Options()))
    child.full_claims = MUCH_WORK
    child.size.value = child.size.ramp = child.size.maximum = MANY
    child.size.seconds_per_task = 1e-6
    database.enqueue(handlers.quick, count=6 * MANY)
    end(child, child.next_batch())
    child.claimer.shortcut = BEGINNING
    yield child
    for slot in child.reserver._slots:
        slot.close()
    child.outbox.close()
    child.session.forget()
    for descriptor in (lifeline, busy, child.wake_read, child.wake_write):
        os.close(descriptor)


def end(child, batch, failure=None):
    for claim in batch:
        child.outbox.add(Ending(claim.id, claim.version, claim.attempt, 0.0, 0.0, failure=failure))


def begin(child):
    """Claim, publish and send as for a batch that runs; its first task has begun and has not ended."""
    batch = child.next_batch()
    child.page.publish(batch, child.outbox.ids())
    child._send()
    assert child.page.begin(0, None)
    return batch


def begin_reserved(child):
    """The same, with a batch that is reserved."""
    end(child, begin(child))
    batch = begin(child)
    assert child.reserver.is_running
    return batch


def process(child):
    return Process("w1", 1, child.page, time.monotonic())


def ids(rows):
    return [row.id for row in rows]


def states(database, batch):
    return {tuple(row) for row in database.rows(STATES, ids(batch))}


def locked(database):
    return ids(database.rows(LOCKED))


def lose_the_locks(database):
    """As when the server ends the sessions that hold them."""
    wait_until(lambda: not (database.rows(END_SESSIONS) or locked(database)))


def claim_all(other):
    """What is left for somebody else."""
    claimer, found = Claimer("w2"), []
    while batch := claims.claim(other, claimer, 10 * MANY):
        found += ids(batch)
    return found


def test_the_server_reserves_the_next_batch_while_this_one_runs(database, child):
    batch = begin(child)
    reserved = wait_until(lambda: locked(database))
    assert reserved == [claim.id + MANY for claim in batch]
    assert database.value(NOTED) == 0, "nothing is to be run of it yet"
    end(child, batch)
    following = child.next_batch()
    assert ids(following) == reserved
    assert (child.reserver.is_running, database.value(NOTED)) == (True, 1)
    assert states(database, following) == {READY}
    assert {(claim.version, claim.attempt, claim.ordering_key) for claim in following} == {(2, 1, None)}
    assert child.full_claims == MUCH_WORK + 3, "it was full"


def test_it_is_told_of_each_task_what_a_claim_tells(database, child):
    beginning = database.value("SELECT min(id) FROM tasks_task")
    for column, value in (("args", "[1]"), ("kwargs", '{"a": 2}'), ("created_at", "2026-01-01"), ("max_attempts", "9")):
        beginning += 1
        database.rows(f"UPDATE tasks_task SET {column} = %s WHERE id = %s RETURNING id", value, beginning + 2 * MANY)
    batch = begin_reserved(child)
    rows = database.rows(TOLD, ids(batch))
    assert [astuple(claim)[:-1] for claim in batch] == [tuple(row) for row in rows]
    assert {tuple(row) for row in database.rows(NOTED_AT)} == {(claim.started_at,) for claim in batch}


def test_its_end_is_one_write(database, child):
    batch = begin_reserved(child)
    end(child, batch)
    following = child.next_batch()
    wait_until(lambda: states(database, batch) == {DONE})
    rows = database.rows(
        "SELECT DISTINCT version, finished_by, finished_at >= started_at AS has_run FROM tasks_task WHERE id = ANY(%s)",
        ids(batch),
    )
    assert [tuple(row) for row in rows] == [(3, "w1", True)]
    assert database.value(NOTED) == 1, "of the following batch"
    assert ids(following) == [claim.id + MANY for claim in batch]
    end(child, following)
    last = child.next_batch()
    assert child.reserver.is_running
    assert ids(last) == [claim.id + MANY for claim in following]


def test_what_is_on_its_way_is_not_due_again(database, child, monkeypatch):
    """However long ago it ended: a flush would make ordinary claims of all that is reserved."""
    monkeypatch.setattr(outbox, "FLUSH_SECONDS", 60.0)
    monkeypatch.setattr(reserving, "LONGEST_SECONDS", 60.0)
    batch = begin_reserved(child)
    end(child, batch[:1])
    assert (len(child.outbox), child.companion.is_due()) == (MANY + 1, False)
    end(child, batch[1:])
    begin(child)
    assert (len(child.outbox), child.companion.is_due()) == (MANY, False)
    child.companion.flush(child.companion.is_due)
    assert child.reserver.is_running
    child.outbox._sent_at -= 61.0  # an answer is not waited for either
    child.companion.flush(child.companion.is_due)
    assert (child.reserver.is_running, len(child.outbox)) == (False, 0)


def test_nor_is_it_while_its_answer_is_read(child, monkeypatch):
    monkeypatch.setattr(outbox, "FLUSH_SECONDS", 60.0)
    begin_reserved(child)
    read, is_due = child.outbox._read, []
    child.outbox._read = lambda: (is_due.append(child.outbox.is_due()), read())[1]
    child.outbox.settle()
    assert (is_due, len(child.outbox)) == ([False], 0)


def test_the_line_is_walked_from_its_beginning_now_and_then(database, child):
    """What came in before the last task is among the next."""
    batch = begin_reserved(child)
    database.connection.execute("UPDATE tasks_task SET run_after = run_after - interval '1 day' WHERE id = %s",
                                [batch[-1].id + 3 * MANY])  # fmt: skip
    child.reserver._walk_at = 0.0
    end(child, batch)
    end(child, child.next_batch())
    assert child.next_batch()[0].id == batch[-1].id + 3 * MANY


BESIDE = {
    "another priority": "INSERT INTO tasks_task (task_path, priority) VALUES ('a', 5)",
    "another queue": "INSERT INTO tasks_task (task_path, queue_name) VALUES ('a', 'other')",
    "the head of a key": "INSERT INTO tasks_task (task_path, ordering_key) VALUES ('a', 'k')",
    "more keys than are looked at": """
        INSERT INTO tasks_task (task_path, ordering_key, run_after)
        SELECT 'a', 'k' || n, now() + interval '1 hour' FROM generate_series(1, 300) AS n""",
}
NOT_DUE = {
    "scheduled": "INSERT INTO tasks_task (task_path, priority, run_after) VALUES ('a', 5, now() + interval '1 hour')",
    "in a paused queue": "INSERT INTO tasks_task (task_path, queue_name, priority) VALUES ('a', 'paused', 5)",
    "in a queue of others": "INSERT INTO tasks_task (task_path, queue_name, priority) VALUES ('a', 'other', 5)",
    "held back by its key": """
        INSERT INTO tasks_task (task_path, ordering_key, status, priority, attempt, claimed_by, started_at) VALUES
            ('a', 'k', 'PROCESSING', 5, 1, 'w9', now()), ('a', 'k', 'READY', 5, 0, NULL, NULL)""",
}


def go_on_with(database, child, statement):
    """With this in the line, which is walked next; the batch that is claimed then."""
    batch = begin_reserved(child)
    database.connection.execute(statement)
    child.reserver._walk_at = 0.0
    end(child, batch)
    end(child, child.next_batch())
    return child.next_batch()


@pytest.mark.parametrize("beside", BESIDE)
def test_where_others_may_be_due_it_is_left_to_ordinary_claims(database, child, beside):
    assert states(database, go_on_with(database, child, BESIDE[beside])) == {CLAIMED}
    assert not child.reserver.is_running


@pytest.mark.parametrize("not_due", NOT_DUE)
def test_what_cannot_be_claimed_does_not_end_it(database, child, not_due):
    database.rows("INSERT INTO tasks_queue (name, paused) VALUES ('paused', true) RETURNING name")
    if not_due == "in a queue of others":
        child.claimer.queues = ["default"]
    following = go_on_with(database, child, NOT_DUE[not_due])
    assert (child.reserver.is_running, len(following)) == (True, MANY)
    assert states(database, following) == {READY}


@pytest.mark.parametrize("hindrance", ["few are wanted", "a limited number", "no long line", "little work", "long"])
def test_nothing_is_reserved(database, child, hindrance):
    if hindrance == "few are wanted":
        child.size.value = MANY - 1
    elif hindrance == "a limited number":
        child.options = replace(child.options, max_tasks=10 * MANY)
    elif hindrance == "long":
        child.size.seconds_per_task = 0.001
    batch = child.next_batch()
    if hindrance == "no long line":
        child.claimer.shortcut = None
    elif hindrance == "little work":
        child.full_claims = MUCH_WORK - 1
    child.page.publish(batch, child.outbox.ids())
    child._send()
    assert not child.reserver._queue


def test_tasks_that_stand_far_apart_are_claimed_and_the_next_not_even_locked(database, child, monkeypatch):
    monkeypatch.setattr(reservation, "LONGEST_SPAN", MANY - 1)
    end(child, begin(child))
    wait_until(lambda: locked(database))
    batch = begin(child)
    assert states(database, batch) == {CLAIMED}
    child.claimer.shortcut = BEGINNING
    child._send()
    assert not child.reserver._queue
    assert not locked(database)


def test_a_claim_of_as_many_as_one_may_take_is_full(child):
    """Though more may be reserved."""
    child.full_claims = 0
    child.size.value = child.size.ramp = child.size.maximum = child.options.largest
    assert len(child.next_batch()) == child.options.largest_batch
    assert child.full_claims == 1


def test_beside_a_worker_of_an_older_version_nothing_is_reserved(database, child):
    """It does not ask for notes."""
    batch = begin_reserved(child)
    wait_until(lambda: len(locked(database)) == 2 * MANY)
    database.connection.execute("INSERT INTO tasks_worker (id, hostname, pid) VALUES ('older', 'host', 1)")
    end(child, batch)
    end(child, child.next_batch())
    assert states(database, child.next_batch()) == {CLAIMED}
    assert not child.reserver.is_running
    child.companion.flush()
    assert locked(database) == []


def test_failed_ones_are_written_as_ever(database, child):
    batch = begin_reserved(child)
    end(child, batch[:-2])
    end(child, batch[-2:], Failure("ValueError", "", 60.0))
    child.next_batch()
    end(child, child.next_batch())
    assert states(database, batch[:-2]) == {DONE}
    assert database.outcomes(batch[-1].id) == database.outcomes(batch[-2].id) == ["failed"]
    assert states(database, batch[-2:]) == {("READY", 1, "")}
    assert child.page.words[FAILED] == 2


@pytest.mark.parametrize("are_locked", [True, False])
def test_nobody_else_claims_what_is_reserved(database, other, child, are_locked):
    batch = begin_reserved(child)
    if not are_locked:
        lose_the_locks(database)
    [first] = claims.claim(other, Claimer("w2"), 1)
    assert first.id > batch[-1].id, "and does not wait for it"
    assert not {*ids(batch)} & {*claim_all(other)}


def test_it_is_not_claimed_by_who_has_looked_before(database, other, child):
    batch = begin_reserved(child)
    lose_the_locks(database)
    assert claims._swap(other, Claimer("w2"), batch[0].id, version=1) is None
    assert claims._swap(other, Claimer("w2"), batch[-1].id + 3 * MANY, version=1)


def test_the_server_ends_locks_that_stand_still(database, child):
    """Of a process that is frozen, or of a host that is gone."""
    begin_reserved(child)
    wait_until(lambda: len(locked(database)) == 2 * MANY)
    wait_until(lambda: not locked(database), seconds=20)


def test_a_batch_whose_locks_are_lost_is_not_begun(database, child):
    end(child, begin(child))
    wait_until(lambda: locked(database))
    child.outbox.settle()
    child.reserver.read()
    lose_the_locks(database)
    batch = child.next_batch()
    assert not child.reserver.is_running
    assert states(database, batch) == {CLAIMED}, "an ordinary claim"
    assert database.value(NOTED) == 0


def test_a_batch_of_which_somebody_else_has_noted_a_task_is_not_begun(database, child):
    end(child, begin(child))
    [taken] = wait_until(lambda: locked(database))[:1]
    database.connection.execute(
        "INSERT INTO tasks_reservation (worker_id, slot, queue_name, first_id, members, reserved_at) "
        "VALUES ('w0', 1, 'default', %s, '\\x01', now())", [taken])  # fmt: skip
    batch = child.next_batch()
    assert not child.reserver.is_running
    assert taken not in ids(batch)
    assert database.value(NOTED) == 1


def test_what_is_left_of_an_ordinary_claim_is_written_before(database, child):
    ordinary = begin(child)
    end(child, ordinary[:-1])
    end(child, ordinary[-1:], Failure("ValueError", "", 60.0))
    batch = begin(child)
    assert child.reserver.is_running
    end(child, batch)
    end(child, child.next_batch())
    wait_until(lambda: states(database, ordinary[:-1]) == states(database, batch) == {DONE})
    assert database.outcomes(ordinary[-1].id) == ["failed"]
    assert database.rows("SELECT * FROM tasks_refusedwrite") == []


def test_while_a_task_lasts_it_is_an_ordinary_claim(database, other, child):
    batch = begin_reserved(child)
    child.outbox.settle()
    child.reserver._current.since -= LONGEST_SECONDS
    child.companion.begin_batch()
    child.companion._keep_session()
    assert states(database, batch) == {CLAIMED}
    assert locked(database) == [], "and the next one is let go"
    assert (database.value(NOTED), child.reserver.is_running) == (0, False)
    end(child, batch)
    child.companion.flush()
    assert states(database, batch) == {DONE}
    assert child.page.words[COMPLETED] == 3 * MANY


def test_what_has_ended_is_written_while_another_task_of_it_lasts(database, child):
    batch = begin_reserved(child)
    end(child, batch[:5])
    child.companion.flush()
    assert states(database, batch[:5]) == {DONE}
    assert states(database, batch[5:]) == {CLAIMED}


def test_a_task_that_lasts_and_keeps_everything_to_itself_holds_up_nobody(database, keeper, other, child):
    """The worker cannot do anything about it; its supervisor does as soon as the locks are over."""
    batch = begin_reserved(child)
    keeper.release("w1", child.page.take_unstarted())
    keeper.tick([process(child)])
    assert states(database, batch) == {READY}, "held still"
    lose_the_locks(database)
    keeper.tick([process(child)])
    assert states(database, batch[:1]) == {CLAIMED}
    assert {*ids(batch[1:])} <= {*claim_all(other)}
    assert not child.page.begin(1, None)
    end(child, batch[:1])
    child._end_batch(batch[1:], [])
    child.next_batch()
    assert states(database, batch[:1]) == {DONE}
    assert states(database, batch[1:]) == {("PROCESSING", 1, "w2")}


def test_the_supervisor_touches_no_later_batch(database, keeper, child):
    """The task ends while the supervisor looks."""
    begin_reserved(child)
    child.page.take_unstarted()
    found = child.page.void_reservation()
    child._end_batch([], [])
    child.reserver.claim(child.session.connection, child.outbox.ids())
    child.claimer.shortcut = BEGINNING
    batch = begin_reserved(child)
    child.page.void_reservation = lambda: found
    keeper.tick([process(child)])
    assert database.value(NOTED) == 1
    assert states(database, batch) == {READY}


def test_a_child_that_died_has_spent_the_attempts_that_it_began(database, keeper, child):
    batch = begin_reserved(child)
    assert child.page.begin(4, None)
    following = [claim.id + MANY for claim in batch]
    for slot in child.reserver._slots:
        slot.session.connection.pgconn.finish()
    keeper.bury(process(child))
    keeper.tick([])
    wait_until(lambda: (keeper.tick([]), database.outcomes(batch[4].id))[1])
    assert {tuple(database.outcomes(claim.id)) for claim in batch[:5]} == {("abandoned",)}
    assert states(database, batch[:5]) == {("READY", 1, "")}
    assert states(database, batch[5:]) == {READY}
    assert database.value("SELECT max(attempt) FROM tasks_task WHERE id = ANY(%s)", following) == 0


def test_nothing_is_buried_before_the_locks_are_over(database, keeper, child):
    batch = begin_reserved(child)
    keeper.bury(process(child))
    keeper.tick([])
    assert states(database, batch) == {READY}
    assert len(keeper.pending) == 2
    lose_the_locks(database)
    keeper.tick([])
    assert database.outcomes(batch[0].id) == ["abandoned"]
    assert not keeper.pending


def test_a_sweep_takes_back_what_the_dead_have_noted(database, child):
    """Whoever has died with its supervisor: nobody knows what has begun."""
    batch = begin_reserved(child)
    for slot in child.reserver._slots:
        slot.close()
    child.session.forget()
    wait_until(lambda: recovery.recover(database.connection).rows)
    assert {tuple(database.outcomes(claim.id)) for claim in batch} == {("abandoned",)}
    assert database.value("SELECT count(*) FROM tasks_reservation") == 0


def test_what_ran_once_and_may_not_run_twice_has_failed(database, child):
    database.connection.execute("UPDATE tasks_task SET max_attempts = 1")
    batch = begin_reserved(child)
    for slot in child.reserver._slots:
        slot.close()
    child.session.forget()
    wait_until(lambda: recovery.recover(database.connection).rows)
    assert states(database, batch) == {("FAILED", 1, "")}


def test_a_lost_session_loses_nothing(database, child):
    batch = begin_reserved(child)
    end(child, batch)
    lose_the_locks(database)
    child.next_batch()  # sends its end, in vain
    end(child, child.next_batch())
    assert states(database, batch) == {DONE}
    assert child.page.words[COMPLETED] >= 3 * MANY
    assert database.rows("SELECT * FROM tasks_refusedwrite") == database.rows("SELECT * FROM tasks_attempt") == []


def test_an_end_whose_answer_was_lost_is_not_written_twice(database, child):
    batch = begin_reserved(child)
    end(child, batch)
    child.next_batch()
    wait_until(lambda: states(database, batch) == {DONE})
    for slot in child.reserver._slots:
        slot.session.connection.pgconn.finish()
    child.outbox.settle()
    child.companion.flush()
    assert child.page.words[COMPLETED] == 3 * MANY
    assert database.value("SELECT max(version) FROM tasks_task WHERE id = ANY(%s)", ids(batch)) == 3
    assert database.rows("SELECT * FROM tasks_refusedwrite") == []


def test_of_what_is_unsettled_nothing_is_sent_as_an_ordinary_claim(database, child):
    """The next batch is lost while this one runs, and nothing else is."""
    batch = begin_reserved(child)
    child.reserver._queue[0].session.connection.pgconn.finish()
    end(child, batch)
    end(child, child.next_batch())
    child._send()
    child.companion.flush()
    assert states(database, batch) == {DONE}
    assert database.rows("SELECT * FROM tasks_refusedwrite") == []


def test_when_the_first_session_is_lost_the_batch_is_kept(database, child):
    batch = begin_reserved(child)
    end(child, batch)
    child.session.connection.close()
    assert child.next_batch()
    wait_until(lambda: states(database, batch) == {DONE})


def test_a_cancelled_task_is_not_completed_by_a_worker_that_lost_its_locks(database, child):
    batch = begin_reserved(child)
    end(child, batch)
    lose_the_locks(database)
    database.connection.execute(
        "UPDATE tasks_task SET status = 'CANCELLED', finished_at = now() WHERE id = %s", [batch[0].id])  # fmt: skip
    child.companion.flush()
    assert states(database, batch[:1]) == {("CANCELLED", 0, "")}
    assert states(database, batch[1:]) == {DONE}
    assert ids(database.rows("SELECT task_id AS id FROM tasks_refusedwrite")) == [batch[0].id]


def test_a_stopped_worker_keeps_nothing(database, child):
    batch = begin_reserved(child)
    end(child, batch[:3])
    child._end_batch(batch[3:], [])
    child.leave()
    assert states(database, batch[:3]) == {DONE}
    assert states(database, batch[3:]) == {READY}
    assert (locked(database), database.value("SELECT count(*) FROM tasks_reservation")) == ([], 0)


def test_a_task_that_nobody_knows_is_parked(database, child):
    batch = begin_reserved(child)
    end(child, batch[1:])
    child._end_batch([], batch[:1])
    child.companion.flush()
    assert states(database, batch[:1]) == {READY}
    assert database.value("SELECT run_after > now() + interval '3 seconds' FROM tasks_task WHERE id = %s", batch[0].id)
    assert states(database, batch[1:]) == {DONE}


def test_who_rests_has_one_session_and_no_note(database, child):
    end(child, begin_reserved(child))
    while batch := child.next_batch():
        end(child, batch)
    child.rest()
    assert database.value("SELECT count(*) FROM tasks_reservation") == 0
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'rowlock:worker:w1'"
    wait_until(lambda: database.value(sessions) == 1)
    assert child.page.words[COMPLETED] == 6 * MANY
    assert database.value("SELECT sum(completed)::int FROM tasks_throughput") == 6 * MANY
