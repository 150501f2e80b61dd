"""A task runs past its `timeout`: it ends, whatever it is doing, and costs one child."""

import pytest

from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until


@pytest.mark.parametrize("strategy", ["skip_locked", "pessimistic"])
@pytest.mark.parametrize("handler", [handlers.hang, handlers.hang_in_c, handlers.hang_in_query])
def test_a_task_that_hangs_is_ended_at_its_timeout(database, ledger, start_worker, strategy, handler):
    [task_id] = database.enqueue(handler)
    start_worker("--strategy", strategy)
    task = database.wait_for(task_id, "FAILED")
    [attempt] = database.rows("SELECT * FROM tasks_attempt")
    [effect] = ledger.effects(task_id)
    assert (attempt.outcome, attempt.exception_class) == ("timed_out", "tasks.exceptions.TimedOut")
    assert "its timeout is 1.0 s" in attempt.traceback
    assert (task.finished_at - effect.began).total_seconds() > 0.9


def test_a_timeout_costs_one_child_and_one_attempt(database, ledger, start_worker):
    [hanging] = database.enqueue(handlers.hang, max_attempts=2)
    worker = start_worker("--concurrency", 2)
    wait_until(lambda: ledger.effects(hanging))
    [beside] = database.enqueue(handlers.work, 1.5)
    database.wait_for(hanging, "FAILED")
    assert database.outcomes(hanging) == ["timed_out", "timed_out"]
    assert database.wait_for(beside, "COMPLETED").attempt == 1
    wait_until(lambda: len(worker.children()) == 2)
    [after] = database.enqueue(handlers.work)
    database.wait_for(after, "COMPLETED")
    # A new child is there a moment before its row is, so the rows are waited for.
    reasons = "SELECT string_agg(stop_reason, ',' ORDER BY stop_reason) FROM tasks_worker"
    wait_until(lambda: database.value(reasons) == ",,timeout,timeout")
    assert len({effect.pid for effect in ledger.effects(hanging)}) == 2


def test_f15_a_handler_that_keeps_the_gil_past_its_lease_keeps_its_task(database, ledger, start_worker):
    """A thread of the child could not renew the lease meanwhile; the supervisor does."""
    [task_id] = database.enqueue(handlers.hold_gil, 8)
    holder = start_worker(ROWLOCK_LEASE_SECONDS=5)
    wait_until(lambda: ledger.effects(task_id))
    start_worker(ROWLOCK_LEASE_SECONDS=5)
    assert database.wait_for(task_id, "COMPLETED").attempt == 1
    [effect] = ledger.effects(task_id)
    assert effect.pid in holder.children()
    assert database.value("SELECT count(*) FROM tasks_worker WHERE stopped_at IS NOT NULL") == 0


def test_f15_a_row_that_somebody_locks_keeps_no_lease_from_being_renewed(database, ledger, start_worker):
    """The supervisor cannot write what became of the one task, and goes on looking after the worker of the other."""
    [hanging] = database.enqueue(handlers.hang)
    [holding] = database.enqueue(handlers.hold_gil, 8)
    start_worker("--concurrency", 2, ROWLOCK_LEASE_SECONDS=5)
    wait_until(lambda: ledger.count() == 2)
    start_worker(ROWLOCK_LEASE_SECONDS=5)
    with database.connection.transaction():
        database.rows("SELECT FROM tasks_task WHERE id = %s FOR UPDATE", hanging)
        wait_until(lambda: ledger.effects(holding)[0].ended)
    assert database.wait_for(hanging, "FAILED", "READY")
    # Whoever comes first once the row is free: its supervisor, or a sweep that finds its worker dead.
    assert database.outcomes(hanging) in (["timed_out"], ["abandoned"])
    assert database.wait_for(holding, "COMPLETED").attempt == 1
    assert len(ledger.effects(holding)) == 1
