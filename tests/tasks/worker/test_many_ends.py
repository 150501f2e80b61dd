"""Tasks that run at once end one by one: at their timeout, by a cancel, by a handler's faults, with their process."""

import os
import signal
import time

import psycopg
import pytest

from tasks.worker.supervisor import HANG_SECONDS
from tests.chaos.gated import tasks as gated
from tests.processes import HANDLERS_APP
from tests.tasks.worker.test_cancelling import ask_to_cancel
from tests.tasks.worker_app import pooled
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
REFUSED = "SELECT count(*) FROM tasks_refusedwrite WHERE task_id = %s"
WITH_GATES = {"ROWLOCK_APPS": f"{HANDLERS_APP},{gated.APP}"}
FIRST_GATE = 4712


def test_a_coroutine_is_cancelled_at_its_timeout_and_nothing_else_is(database, ledger, start_worker):
    [late] = database.enqueue(pooled.rest_too_long)
    [stubborn] = database.enqueue(pooled.will_not_go)
    others = database.enqueue(pooled.rest, 2.0, count=20)
    worker = start_worker("--coroutines", 50)
    wait_until(lambda: ledger.count() == 22)
    children = worker.children()
    for task_id in (late, stubborn):
        database.wait_for(task_id, "FAILED", seconds=10)
        assert database.outcomes(task_id) == ["timed_out"]
    assert {database.wait_for(task_id, "COMPLETED").attempt for task_id in others} == {1}
    assert worker.children() == children
    assert database.value("SELECT count(*) FROM tasks_queue WHERE name = 'cleaned up'") == 1
    assert "its timeout is 0.5 s" in database.value("SELECT traceback FROM tasks_attempt WHERE task_id = %s", late)


def test_a_coroutine_is_cancelled_by_an_operator(database, ledger, start_worker):
    [cancelled] = database.enqueue(pooled.rest, 600.0)
    others = database.enqueue(pooled.rest, 3.0, count=5)
    worker = start_worker("--coroutines", 50)
    wait_until(lambda: ledger.count() == 6)
    children = worker.children()
    ask_to_cancel(database, cancelled)
    database.wait_for(cancelled, "CANCELLED", seconds=10)
    assert database.outcomes(cancelled) == ["released"]
    assert ledger.effects(cancelled)[0].ended
    assert {database.wait_for(task_id, "COMPLETED").attempt for task_id in others} == {1}
    assert worker.children() == children


def test_a_coroutine_that_keeps_the_event_loop_costs_its_process(database, ledger, start_worker):
    others = database.enqueue(pooled.rest, 1.5, count=5)
    worker = start_worker("--coroutines", 50)
    wait_until(lambda: ledger.count() == 5)
    children = worker.children()
    [hanging] = database.enqueue(pooled.keep_the_loop)
    database.wait_for(hanging, "FAILED", seconds=20)
    assert database.outcomes(hanging) == ["timed_out"]
    for task_id in others:
        task = database.wait_for(task_id, "COMPLETED", seconds=20)
        assert (task.attempt, database.outcomes(task_id)) == (2, ["released"])
    assert worker.children() != children


@pytest.mark.parametrize("reason", ["timed_out", "cancelled"])
def test_a_thread_past_its_end_is_closed_on_the_row_and_its_process_replaced(database, ledger, start_worker, reason):
    """The others end within their own time, and what the thread writes late is refused."""
    with gated.shut_gate(ledger.url, FIRST_GATE) as first_gate, gated.shut_gate(ledger.url) as gate:
        task = gated.wait_past_its_timeout if reason == "timed_out" else gated.wait_at_the_gate
        [first] = database.enqueue(task, FIRST_GATE)
        others = database.enqueue(gated.wait_at_the_gate, count=2)
        worker = start_worker("--threads", 3, **WITH_GATES)
        wait_until(lambda: ledger.count() == 3)
        [child] = worker.children()
        if reason == "cancelled":
            ask_to_cancel(database, first)
        database.wait_for(first, "FAILED" if reason == "timed_out" else "CANCELLED", seconds=10)
        assert database.outcomes(first) == ["timed_out" if reason == "timed_out" else "released"]
        after = database.enqueue(handlers.work, count=3)
        first_gate.close()
        wait_until(lambda: database.value(REFUSED, first) == 1)
        assert worker.children() == [child], "its other tasks run"
        assert {database.task(task_id).status for task_id in after} == {"READY"}
        gate.close()
    assert {database.wait_for(task_id, "COMPLETED").attempt for task_id in others} == {1}
    assert {database.wait_for(task_id, "COMPLETED").attempt for task_id in after} == {1}
    assert child not in {effect.pid for task_id in after for effect in ledger.effects(task_id)}, "it takes nothing new"
    assert worker.children() != [child]
    stopped = database.value("SELECT stop_reason FROM tasks_worker WHERE stopped_at IS NOT NULL")
    assert stopped == ("timeout" if reason == "timed_out" else "cancel")


def test_what_ended_beside_a_closed_attempt_is_written_before_its_process_goes(database, ledger, start_worker):
    """The last ending waits for its row while nothing else runs: the process must not be ended over it."""
    with (
        gated.shut_gate(ledger.url, FIRST_GATE) as first_gate,
        gated.shut_gate(ledger.url) as gate,
        psycopg.connect(database.url) as outsider,
    ):
        [first] = database.enqueue(gated.wait_past_its_timeout, FIRST_GATE)
        [other] = database.enqueue(gated.wait_at_the_gate)
        start_worker("--threads", 2, **WITH_GATES)
        wait_until(lambda: ledger.count() == 2)
        database.wait_for(first, "FAILED", seconds=10)
        first_gate.close()
        database.rows("SELECT pg_sleep(%s)", HANG_SECONDS + 0.5)  # as long as a process is given that does nothing else
        assert database.value(REFUSED, first) == 1
        outsider.execute("SELECT FROM tasks_task WHERE id = %s FOR UPDATE", [other])
        gate.close()
        wait_until(lambda: ledger.effects(other)[0].ended)
        pid = outsider.info.backend_pid
        wait_until(lambda: database.value(BLOCKED, pid) > 0)
        time.sleep(0.4)  # four looks of the supervisor at a process in which nothing runs
    assert database.wait_for(other, "COMPLETED").attempt == 1


def test_a_process_in_which_only_a_closed_attempt_runs_is_replaced_at_once(database, ledger, start_worker):
    [hanging] = database.enqueue(handlers.hang)
    worker = start_worker("--threads", 4)
    wait_until(lambda: ledger.count() == 1)
    children = worker.children()
    database.wait_for(hanging, "FAILED", seconds=10)
    [after] = database.enqueue(handlers.work)
    database.wait_for(after, "COMPLETED", seconds=10)
    assert worker.children() != children


def test_a_thread_that_keeps_the_interpreter_to_itself_costs_its_process(database, ledger, start_worker):
    [hanging] = database.enqueue(handlers.hang_in_c)
    [other] = database.enqueue(handlers.work, 2.0)
    start_worker("--threads", 4)
    database.wait_for(hanging, "FAILED", seconds=10)
    assert database.outcomes(hanging) == ["timed_out"]
    assert database.wait_for(other, "COMPLETED", seconds=30).status == "COMPLETED"


def test_after_a_kill_everything_that_ran_is_ready_again_at_once(database, ledger, start_worker):
    """By the supervisor, which sees the death: no sweep comes."""
    sync = database.enqueue(handlers.work, 600.0, 0.0, count=50)
    coroutines = database.enqueue(pooled.rest, 600.0, count=1000)
    worker = start_worker("--threads", 50, "--coroutines", 1000, ROWLOCK_SWEEP_SECONDS=3600)
    wait_until(lambda: ledger.count() == 1050, seconds=60)
    database.rows("INSERT INTO tasks_queue (name, paused) VALUES ('default', true)")  # nobody claims them again
    [child] = worker.children()
    os.kill(child, signal.SIGKILL)

    def all_are_ready():
        return database.statuses() == {"READY": 1050}

    wait_until(all_are_ready)
    ids = sync + coroutines
    assert database.value("SELECT count(*) FROM tasks_attempt WHERE outcome = 'abandoned'") == len(ids)
    assert database.value("SELECT count(*) FROM tasks_worker WHERE stop_reason = 'crashed'") == 1


@pytest.mark.parametrize("handler", [handlers.leave_transaction_open, handlers.enter_atomic_and_return])
def test_a_transaction_left_open_in_a_thread_fails_its_task_alone(database, start_worker, handler):
    with database.connection.transaction():
        others = [*database.enqueue(handlers.count_queues, count=30)]
        failing = database.enqueue(handler, count=4)
        others += database.enqueue(handlers.count_queues, count=30)
    assert start_worker("--threads", 4, "--burst").wait() == 0
    assert {database.task(task_id).status for task_id in failing} == {"FAILED"}
    assert {(database.task(task_id).status, database.task(task_id).return_value) for task_id in others} == {
        ("COMPLETED", 0)
    }
    assert database.rows("SELECT * FROM tasks_queue") == []


def test_what_one_coroutine_does_to_its_connection_harms_no_other(database, start_worker):
    with database.connection.transaction():
        good = []
        for _ in range(40):
            good += database.enqueue(pooled.count_and_enqueue)
            bad = database.enqueue(pooled.leave_a_transaction_open)
            broken = database.enqueue(pooled.break_its_connection)
    worker = start_worker("--coroutines", 40, "--burst")
    assert worker.wait() == 0
    assert database.task(bad[0]).status == "FAILED"
    assert "returned with a transaction open" in database.value(
        "SELECT traceback FROM tasks_attempt WHERE task_id = %s", bad[0]
    )
    assert database.task(broken[0]).status == "COMPLETED"
    written = {row.name for row in database.rows("SELECT name FROM tasks_queue")}
    assert written == {f"written by {task_id}" for task_id in good}
    assert {database.task(task_id).status for task_id in good} == {"COMPLETED"}


def test_faults_of_a_coroutine_are_its_own(database, start_worker):
    bad = database.enqueue(pooled.raise_exit) + database.enqueue(pooled.cancel_itself)
    good = database.enqueue(pooled.rest, 0.2, count=20)
    worker = start_worker("--coroutines", 10, "--burst")
    assert worker.wait() == 0
    assert [database.value("SELECT exception_class FROM tasks_attempt WHERE task_id = %s", id) for id in bad] == [
        "builtins.SystemExit", "asyncio.exceptions.CancelledError",
    ]  # fmt: skip
    assert {database.task(task_id).status for task_id in good} == {"COMPLETED"}
    assert database.value("SELECT count(*) FROM tasks_worker") == 1


def test_a_thousand_coroutines_use_the_orm(database, start_worker):
    database.enqueue(pooled.count_and_enqueue, count=1000)
    worker = start_worker("--coroutines", 1000, "--burst")
    assert worker.wait() == 0
    assert database.statuses() == {"COMPLETED": 2000}
    assert database.value("SELECT count(*) FROM tasks_queue") == 1000


def test_a_query_that_waits_holds_up_few_and_ends_with_its_task(database, ledger, start_worker):
    """All of them fail at their timeout, and leave their connections to others."""
    database.rows("INSERT INTO tasks_queue (name) VALUES ('held')")
    with database.connection.transaction():
        database.rows("SELECT FROM tasks_queue WHERE name = 'held' FOR UPDATE")
        others_connection = type(database)(database.url)
        waiting = others_connection.enqueue(pooled.wait_for_lock, count=8)
        start_worker("--coroutines", 50)
        wait_until(lambda: others_connection.value(WAITING) > 1)
        wait_until(lambda: ledger.count() == 8)
        for task_id in waiting:
            others_connection.wait_for(task_id, "FAILED", seconds=10)
            assert others_connection.outcomes(task_id) == ["timed_out"]
        good = others_connection.enqueue(pooled.count_and_enqueue, count=16)
        for task_id in good:
            others_connection.wait_for(task_id, "COMPLETED", seconds=10)
        others_connection.close()
    assert database.value("SELECT paused FROM tasks_queue WHERE name = 'held'") is False


def test_threads_hold_their_rows_pessimistically(database, ledger, start_worker):
    """A kill in the middle leaves no write; the next attempt leaves one for each task."""
    tasks = database.enqueue(pooled.hold_in_transaction, 1.0, count=8)
    worker = start_worker("--threads", 8, "--strategy", "pessimistic")
    wait_until(lambda: ledger.count() == 8)
    [child] = worker.children()
    os.kill(child, signal.SIGKILL)
    assert database.wait_until_finished() == {"COMPLETED": 8}
    assert {row.name for row in database.rows("SELECT name FROM tasks_queue")} == {str(task_id) for task_id in tasks}
    assert {row.attempt for row in database.rows("SELECT attempt FROM tasks_task")} == {2}


def test_a_thread_that_holds_its_row_past_its_timeout_is_ended_with_its_process(database, ledger, start_worker):
    """The row is closed once its lock is free; the others commit before."""
    [hanging] = database.enqueue(handlers.hang)
    others = database.enqueue(pooled.hold_in_transaction, 3.0, count=3)
    start_worker("--threads", 4, "--strategy", "pessimistic")
    wait_until(lambda: ledger.count() == 4)
    assert {database.wait_for(task_id, "COMPLETED").attempt for task_id in others} == {1}
    database.wait_for(hanging, "FAILED")
    assert database.outcomes(hanging) in (["timed_out"], ["abandoned"])


def test_without_its_supervisor_a_process_ends_what_it_runs(database, ledger, start_worker):
    tasks = database.enqueue(handlers.work, 2.0, count=4) + database.enqueue(pooled.rest, 2.0, count=4)
    [late] = database.enqueue(pooled.rest_too_long)
    worker = start_worker("--threads", 4, "--coroutines", 8)
    wait_until(lambda: ledger.count() == 9)
    worker.send(signal.SIGKILL)
    wait_until(lambda: not worker.members())
    assert {database.task(task_id).status for task_id in tasks} == {"COMPLETED"}
    assert database.task(late).status == "FAILED"
