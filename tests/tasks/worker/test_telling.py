"""Progress and log lines of tasks in real worker processes, some of which are killed."""

import os
import signal

import psycopg
import pytest

from tasks.queue import wakeup
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until


@pytest.mark.parametrize(
    ("handler", "options"),
    [(handlers.tell, ()), (handlers.tell, ("--threads", 4)), (handlers.tell_async, ("--coroutines", 4))],
)
def test_what_a_running_task_tells_is_seen_while_it_runs_and_found_after_a_kill(
    database, start_worker, handler, options
):
    [task_id] = database.enqueue(handler, 1)
    worker = start_worker(*options)
    told = "SELECT * FROM tasks_progress WHERE task_id = %s AND attempt = %s"
    [progress] = wait_until(lambda: database.rows(told, task_id, 1))
    assert (progress.fraction, progress.message, progress.state) == (0.25, "a quarter", {"row": 7})
    lines = "SELECT number, level, message FROM tasks_attemptlog WHERE task_id = %s ORDER BY id"
    wait_until(lambda: database.rows(lines, task_id))
    [child] = worker.children()
    os.kill(child, signal.SIGKILL)
    task = database.wait_for(task_id, "COMPLETED")
    assert (task.attempt, task.return_value) == (2, {"row": 7})
    assert [tuple(line) for line in database.rows(lines, task_id)] == [
        (1, "WARNING", "begun with None"),
        (2, "WARNING", "begun with {'row': 7}"),
    ]
    assert worker.stop() == 0


BLOCKED = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"


@pytest.mark.parametrize(
    ("handler", "options"),
    [(handlers.tell, ()), (handlers.tell_async, ("--coroutines", 4))],
    ids=["alone", "coroutine"],
)
def test_an_outage_before_the_checkpoint_is_read_spends_no_attempt(database, start_worker, handler, options):
    """The worker loses its session while it waits for the table of checkpoints."""
    with psycopg.connect(database.url) as other:
        other.execute("LOCK TABLE tasks_progress")
        [task_id] = database.enqueue(handler, 0, run_after_seconds=3600)
        database.rows("UPDATE tasks_task SET attempt = 1, run_after = now() WHERE id = %s", task_id)
        start_worker(*options)
        wait_until(lambda: database.rows(BLOCKED, "%tasks_progress%"))
    assert database.wait_for(task_id, "COMPLETED").attempt == 2
    assert database.outcomes(task_id) == []


def test_a_locked_table_of_reports_holds_up_no_ending(database, start_worker):
    start_worker()
    with psycopg.connect(database.url) as other:
        other.execute("LOCK TABLE tasks_progress, tasks_attemptlog")
        [task_id] = database.enqueue(handlers.tell, 0)
        database.wait_for(task_id, "COMPLETED")
    wait_until(lambda: database.rows("SELECT 1 FROM tasks_progress WHERE task_id = %s AND fraction = 0.25", task_id))


def test_a_handler_in_a_thread_stops_when_it_hears_that_it_is_cancelled(database, ledger, start_worker):
    """A process with another task waits for that one; with none it ends at once."""
    [beside] = database.enqueue(handlers.work, 30.0)
    [task_id] = database.enqueue(handlers.stop_when_cancelled)
    start_worker("--threads", 2)
    wait_until(lambda: ledger.effects(task_id) and ledger.effects(beside))
    database.rows("UPDATE tasks_task SET cancel_requested_at = clock_timestamp() WHERE id = %s", task_id)
    wakeup.summon(database.connection)
    database.wait_for(task_id, "CANCELLED")
    wait_until(lambda: ledger.effects(task_id)[0].ended)
