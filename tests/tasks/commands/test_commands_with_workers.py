"""The operators' commands against real workers: what they ask for is what happens."""

import signal

import pytest

from tests.commands import run_process
from tests.processes import HANDLERS_APP
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until


@pytest.fixture
def manage(database):
    """Runs a command on the database of the test."""

    def run(name, *argv):
        outcome = run_process(name, *argv, "--json", env={"DATABASE_URL": database.url, "ROWLOCK_APPS": HANDLERS_APP})
        assert "Traceback" not in outcome.stderr, outcome.stderr
        return outcome

    return run


@pytest.fixture
def running(database, ledger, start_worker):
    """A task of ten minutes in its first attempt, and the worker that runs it."""
    [task_id] = database.enqueue(handlers.work, 600.0, 0.0)
    worker = start_worker()
    wait_until(lambda: ledger.effects(task_id))
    return task_id, worker


def test_cancelling_waits_until_the_worker_has_ended_the_task(manage, database, running):
    task_id, worker = running
    outcome = manage("cancel_tasks", task_id)
    assert (outcome.status, outcome.data["ids"], outcome.data["cancelling"]) == (0, [task_id], [])
    assert (database.task(task_id).status, database.outcomes(task_id)) == ("CANCELLED", ["released"])
    assert worker.process.poll() is None


def test_a_task_whose_row_its_own_worker_has_locked_can_be_cancelled(manage, database, ledger, start_worker):
    """The pessimistic worker holds the row through the work: no request can be written into it."""
    [task_id] = database.enqueue(handlers.work, 600.0, 0.0)
    worker = start_worker("--strategy", "pessimistic")
    wait_until(lambda: ledger.effects(task_id))
    outcome = manage("cancel_tasks", task_id, "--reason", "wrong customer")
    assert (outcome.status, outcome.data["ids"], outcome.data["refused"]) == (0, [task_id], [])
    assert (database.task(task_id).status, database.outcomes(task_id)) == ("CANCELLED", ["released"])
    assert worker.process.poll() is None


def test_f18_requeueing_by_force_runs_it_again_and_refuses_the_late_write(manage, database, ledger, start_worker):
    [task_id] = database.enqueue(handlers.outlast)
    worker = start_worker()
    wait_until(lambda: ledger.effects(task_id))
    assert manage("requeue_tasks", task_id).data["refused"][0]["reason"] == "live"
    assert manage("requeue_tasks", task_id, "--force", "--reason", "it hangs").data["requeued"] == 1
    task = database.wait_for(task_id, "COMPLETED")
    assert (task.attempt, task.max_attempts) == (2, 6)
    wait_until(lambda: database.value("SELECT count(*) FROM tasks_refusedwrite WHERE task_id = %s", task_id) == 1)
    assert (worker.stop(), database.task(task_id).version) == (0, task.version)


def test_a_failed_task_runs_again_at_once(manage, database, start_worker):
    [task_id] = database.enqueue(handlers.hang)
    start_worker()
    database.wait_for(task_id, "FAILED")
    assert manage("requeue_tasks", "--error", "timedout").data["ids"] == [task_id]
    assert database.wait_for(task_id, "FAILED").attempt == 2
    assert database.outcomes(task_id) == ["timed_out", "timed_out"]


def test_a_paused_queue_stands_still_until_it_is_resumed(manage, database, start_worker):
    manage("pause_queue", "mail")
    [held] = database.enqueue(handlers.work, queue="mail")
    [free] = database.enqueue(handlers.work)
    start_worker()
    database.wait_for(free, "COMPLETED")
    assert database.task(held).status == "READY"
    manage("resume_queue", "mail")
    database.wait_for(held, "COMPLETED", seconds=5)


def test_a_worker_stops_when_it_is_asked_to(manage, database, start_worker):
    worker = start_worker()
    wait_until(lambda: database.value("SELECT count(*) FROM tasks_worker") == 1)
    assert manage("stop_worker", database.value("SELECT id FROM tasks_worker")).data["requested"] is True
    assert worker.wait() == 0


class TestAfterEveryWorkerWasKilled:
    """Nobody is left to sweep: what the commands see and do is all there is."""

    @pytest.fixture
    def orphan(self, database, running):
        task_id, worker = running
        worker.send_all(signal.SIGKILL)
        wait_until(lambda: not worker.members())
        return task_id

    def test_the_status_is_unhealthy(self, manage, orphan):
        outcome = manage("queue_status", "--max-stale", 0)
        [queue], [worker] = outcome.data["queues"], outcome.data["workers"]
        assert (outcome.status, queue["processing"], queue["stale"], worker["alive"]) == (3, 1, 1, False)

    def test_one_recovery_takes_it_back(self, manage, database, orphan):
        outcome = manage("recover_tasks")
        assert (outcome.status, outcome.data["requeued"], outcome.data["ids"]) == (0, 1, [orphan])
        assert (database.task(orphan).status, database.outcomes(orphan)) == ("READY", ["abandoned"])

    def test_requeueing_and_cancelling_need_no_recovery_before(self, manage, database, orphan):
        assert manage("requeue_tasks", orphan).data["ids"] == [orphan]
        assert manage("cancel_tasks", orphan).data["ids"] == [orphan]
        assert (database.task(orphan).status, database.outcomes(orphan)) == ("CANCELLED", ["abandoned"])
