"""Asked to stop: no new claim, what runs may finish, what has not begun is given back, nothing stays behind."""

import contextlib
import os
import signal
import time

import psutil
import pytest

from tasks.worker.maintenance import Child
from tasks.worker.options import Options
from tasks.worker.process import DONE
from tasks.worker.shared_state import SharedState
from tasks.worker.supervisor import Supervisor
from tests.chaos.gated import tasks as gated
from tests.processes import HANDLERS_APP
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

STOPS = [signal.SIGTERM, signal.SIGINT]


@pytest.mark.parametrize("number", STOPS)
def test_f13_the_first_signal_finishes_what_runs_and_gives_back_the_rest(database, ledger, start_worker, number):
    worker = start_worker(ROWLOCK_APPS=f"{HANDLERS_APP},{gated.APP}")
    running, behind = 0, [0]

    def something_was_claimed_behind_it() -> bool:
        """On a busy machine a batch may be too small for that: then the gate is opened, and it is tried again."""
        nonlocal running, behind
        gate = gates.enter_context(gated.shut_gate(ledger.url))
        with database.connection.transaction():
            database.enqueue(handlers.quick, count=600)
            [running] = database.enqueue(gated.wait_at_the_gate)
            behind = database.enqueue(handlers.work, count=50)
        wait_until(lambda: ledger.effects(running))
        if max(database.task(task_id).version for task_id in behind) > 1:
            return True
        gate.close()
        database.wait_until_finished()
        return False

    with contextlib.ExitStack() as gates:
        wait_until(something_was_claimed_behind_it, seconds=120)
        worker.send_all(number)  # as Ctrl-C does
        worker.wait_until_it_says("stopping")
    assert worker.wait() == 0
    assert database.task(running).status == "COMPLETED"
    assert not any(ledger.effects(task_id) for task_id in behind)
    given_back = [database.task(task_id) for task_id in behind]
    assert {(task.status, task.attempt, task.claimed_by) for task in given_back} == {("READY", 0, None)}
    assert database.rows("SELECT stop_reason FROM tasks_worker") == [("stopped",)]
    completed = database.statuses()["COMPLETED"]
    assert worker.report() == {"claimed": completed, "completed": completed, "failed": 0, "refused": 0}


def test_f13_nothing_is_claimed_after_the_signal(database, ledger, start_worker):
    database.enqueue(handlers.work, 0.02, count=2000)
    worker = start_worker("--concurrency", 2)
    wait_until(lambda: ledger.count() > 20)
    assert worker.stop() == 0
    statuses = database.statuses()
    assert set(statuses) == {"COMPLETED", "READY"}
    assert statuses["COMPLETED"] == ledger.count() == worker.report()["completed"]
    assert database.value("SELECT max(attempt) FROM tasks_task WHERE status = 'READY'") == 0


def test_f13_a_task_that_outlasts_the_grace_period_is_given_back(database, ledger, start_worker):
    [task_id] = database.enqueue(handlers.work, 600.0)
    worker = start_worker(ROWLOCK_GRACE_SECONDS=1)
    wait_until(lambda: ledger.effects(task_id))
    assert worker.stop() == 0
    task = database.task(task_id)
    assert (task.status, task.attempt, task.max_attempts) == ("READY", 1, 6)
    assert database.outcomes(task_id) == ["released"]
    assert not worker.members()


@pytest.mark.parametrize("number", STOPS)
def test_the_second_signal_ends_at_once(database, ledger, start_worker, number):
    [task_id] = database.enqueue(handlers.work, 600.0)
    worker = start_worker()
    wait_until(lambda: ledger.effects(task_id))
    worker.send(number)
    worker.wait_until_it_says("stopping")
    worker.send(number)
    assert worker.wait() == 128 + number
    assert database.task(task_id).status == "READY"
    assert database.outcomes(task_id) == ["released"]
    assert not worker.members()


def test_a_second_signal_under_load_leaves_nothing_claimed(database, ledger, start_worker):
    database.enqueue(handlers.work, 0.02, count=1000)
    worker = start_worker("--concurrency", 2)
    wait_until(lambda: ledger.count() > 20)
    worker.send(signal.SIGTERM)
    worker.send(signal.SIGTERM)
    assert worker.wait() in (0, 128 + signal.SIGTERM)  # two that come as one are one
    assert set(database.statuses()) == {"COMPLETED", "READY"}
    assert not worker.members()


def test_an_idle_worker_stops_in_order(database, start_worker):
    worker = start_worker("--concurrency", 2)
    wait_until(lambda: database.value("SELECT count(*) FROM tasks_worker") == 2)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert database.rows("SELECT stop_reason FROM tasks_worker") == [("stopped",)] * 2


def test_children_that_lost_their_supervisor_finish_and_end(database, ledger, start_worker):
    worker = start_worker("--concurrency", 3)
    running = database.enqueue(handlers.work, 2.0, count=2)
    wait_until(lambda: ledger.count() == 2)
    later = database.enqueue(handlers.work, run_after_seconds=1.0)
    worker.send(signal.SIGKILL)
    worker.wait()
    wait_until(lambda: not worker.members())
    assert [database.task(task_id).status for task_id in running] == ["COMPLETED"] * 2
    assert [database.task(task_id).status for task_id in later] == ["READY"]
    assert ledger.count() == 2
    assert database.rows("SELECT stop_reason FROM tasks_worker") == [("stopped",)] * 3


def test_what_a_child_without_supervisor_has_not_begun_is_given_back(database, ledger, start_worker):
    with database.connection.transaction():
        database.enqueue(handlers.quick, count=600)
        [running, *behind] = database.enqueue(
            handlers.work, 0.2, count=5
        )  # none is slow enough to be given back for it
    worker = start_worker()
    wait_until(lambda: ledger.effects(running))
    worker.send(signal.SIGKILL)
    wait_until(lambda: not worker.members())
    assert ledger.count() == 1
    assert {(database.task(task_id).status, database.task(task_id).attempt) for task_id in behind} == {("READY", 0)}


def test_a_child_that_lost_its_supervisor_does_not_hang_past_its_timeout(database, ledger, start_worker):
    [task_id] = database.enqueue(handlers.hang)
    worker = start_worker()
    wait_until(lambda: ledger.effects(task_id))
    worker.send(signal.SIGKILL)
    worker.wait()
    wait_until(lambda: not worker.members())


def test_a_worker_that_was_told_to_stop_before_it_could_hear_it(settings, database):
    """The signal came between its fork and its own handlers: it would work on until it is killed in the middle."""
    settings.ROWLOCK = {"DIRECT_DATABASE_URL": database.url}
    [task_id] = database.enqueue(handlers.quick)
    supervisor = Supervisor(Options())
    child = Child("early", 0, SharedState(), time.monotonic())
    child.state.renew_lease()
    pid = os.fork()
    if pid == 0:
        supervisor.signals.append(signal.SIGTERM)  # as its inherited handler does
        os._exit(supervisor._be_child(child))
    try:
        _, status = wait_until(lambda: os.waitpid(pid, os.WNOHANG) if is_over(pid) else None)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(status) == DONE
    assert database.task(task_id).status == "READY"


def is_over(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
