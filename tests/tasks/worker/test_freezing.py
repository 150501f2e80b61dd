"""A worker is frozen past its lease: it is taken for dead, and what it does after that is refused."""

import os
import signal

import pytest

from tasks.queue import recovery
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

SHORT_LEASE = {"ROWLOCK_LEASE_SECONDS": 4}
# However slow the machine is, many tasks are then claimed together.
BIG_BATCHES = {"TEST_BATCH_SECONDS": 3600}
CLAIMED_TWICE = 5  # the version of a completed task that was released once before


def freeze_child(worker, pid):
    os.kill(pid, signal.SIGSTOP)
    return lambda: os.kill(pid, signal.SIGCONT)


def freeze_group(worker, pid):
    worker.send_all(signal.SIGSTOP)
    return lambda: worker.send_all(signal.SIGCONT)


@pytest.mark.parametrize("freeze", [freeze_child, freeze_group])
def test_f01_the_late_write_of_a_frozen_worker_is_refused(database, ledger, start_worker, freeze):
    frozen = start_worker(**SHORT_LEASE)
    [task_id] = database.enqueue(handlers.work, 0.5, 0.0)
    wait_until(lambda: ledger.effects(task_id))
    [old] = database.rows("SELECT * FROM tasks_worker")
    thaw = freeze(frozen, old.pid)
    other = start_worker(**SHORT_LEASE)
    task = database.wait_for(task_id, "COMPLETED")
    thaw()

    def write_was_refused():
        return database.rows("SELECT * FROM tasks_refusedwrite")

    [refused] = wait_until(write_was_refused)
    assert (refused.task_id, refused.worker_id, refused.intent) == (task_id, old.id, "complete")
    assert refused.actual_version == database.task(task_id).version == task.version
    assert [effect.pid for effect in ledger.effects(task_id)] == [old.pid, *other.children()]
    assert database.outcomes(task_id) == ["abandoned"]
    assert database.value("SELECT stop_reason FROM tasks_worker WHERE id = %s", old.id) == "convicted"

    def it_is_back_under_a_new_id():
        alive = database.rows("SELECT * FROM tasks_worker WHERE stopped_at IS NULL")
        return {row.pid for row in alive} == {*frozen.children(), *other.children()} and len(alive) == 2

    wait_until(it_is_back_under_a_new_id)


def test_f01_the_late_write_of_a_frozen_worker_without_a_session_is_refused(database, ledger, start_worker):
    frozen = start_worker(**SHORT_LEASE)
    [task_id] = database.enqueue(handlers.work, 0.5, 0.0)
    wait_until(lambda: ledger.effects(task_id))
    [old] = database.rows("SELECT * FROM tasks_worker")
    thaw = freeze_child(frozen, old.pid)
    sessions = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
    assert database.rows(sessions, f"rowlock:worker:{old.id}")
    start_worker(**SHORT_LEASE)
    database.wait_for(task_id, "COMPLETED")
    thaw()
    [refused] = wait_until(lambda: database.rows("SELECT * FROM tasks_refusedwrite"))
    assert (refused.task_id, refused.worker_id, refused.intent) == (task_id, old.id, "complete")


def test_a_burst_that_was_taken_for_dead_goes_on_to_its_end(database, ledger, start_worker):
    [running, waiting] = database.enqueue(handlers.work, 0.5, count=2)
    worker = start_worker("--burst", **SHORT_LEASE)
    wait_until(lambda: ledger.effects(running))
    thaw = freeze_group(worker, None)

    def it_was_convicted():
        return recovery.sweep(database.connection).dead

    wait_until(it_was_convicted)
    thaw()
    assert worker.wait() == 0
    assert {database.task(task_id).status for task_id in (running, waiting)} == {"COMPLETED"}
    assert database.value("SELECT count(*) FROM tasks_worker") == 2


def test_a_worker_frozen_for_less_than_its_lease_keeps_its_task(database, ledger, start_worker):
    worker = start_worker()
    [task_id] = database.enqueue(handlers.work, 0.3)
    wait_until(lambda: ledger.effects(task_id))
    thaw = freeze_child(worker, worker.children()[0])
    worker_is_seen_frozen = database.value("SELECT clock_timestamp()")
    wait_until(lambda: database.value("SELECT clock_timestamp() > %s + interval '1.5 s'", worker_is_seen_frozen))
    thaw()
    assert database.wait_for(task_id, "COMPLETED").attempt == 1
    assert ledger.count() == 1


def test_what_a_frozen_child_has_not_begun_runs_elsewhere_before_its_lease_ends(database, ledger, start_worker):
    with database.connection.transaction():
        database.enqueue(handlers.quick, count=600)
        [freezer] = database.enqueue(handlers.freeze_itself)
        behind = database.enqueue(handlers.work, count=50)
    start_worker("--concurrency", 2, **BIG_BATCHES)
    wait_until(lambda: ledger.effects(freezer))

    def those_behind_it_have_run():
        return ledger.count() == 1 + len(behind)

    wait_until(those_behind_it_have_run)
    [frozen] = ledger.effects(freezer)
    assert frozen.ended is None
    assert {database.task(task_id).attempt for task_id in behind} == {1}
    assert CLAIMED_TWICE in {database.task(task_id).version for task_id in behind}, "nothing was claimed behind it"


def test_f02_a_convicted_child_that_does_not_end_is_ended_and_replaced(database, ledger, start_worker):
    """It hangs where it cannot notice; its task is another's by then, and its place must not stay empty."""
    [task_id] = database.enqueue(handlers.work, 600.0, 0.0)
    worker = start_worker(**SHORT_LEASE)
    [first] = wait_until(lambda: ledger.effects(task_id))
    database.rows("UPDATE tasks_worker SET stopped_at = clock_timestamp(), stop_reason = 'convicted'")
    assert database.wait_for(task_id, "COMPLETED").attempt == 2
    assert worker.children() == [ledger.effects(task_id)[1].pid] != [first.pid]
    assert ledger.effects(task_id)[0].ended is None
