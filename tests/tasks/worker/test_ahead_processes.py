"""Worker processes in the middle of much work, which claim ahead: beside tasks that last, stopped, and killed."""

import os
import signal
from functools import partial

import pytest

from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

READY = "SELECT count(*), min(attempt) AS least, max(attempt) AS most FROM tasks_task WHERE status = 'READY'"
HELD = "SELECT id FROM tasks_task WHERE status = 'PROCESSING' ORDER BY id"
MUCH = 40_000  # tasks in whose index claims go on behind the last one, for seconds


def fill(database, *lasting):
    """MUCH quick tasks in one transaction, and in their midst those of `lasting`, each a task and its seconds."""
    with database.connection.transaction():
        database.fill(handlers.quick, MUCH // 2)
        found = []
        for task, seconds in lasting:
            found += database.enqueue(task, seconds)
            database.fill(handlers.quick, 2003)
        database.fill(handlers.quick, MUCH // 2)
    return found


def holds_nothing_behind(database, task_id):
    """It runs. What ended before it may not be written yet."""
    held = [row.id for row in database.rows(HELD)]
    return bool(held) and held[-1] == task_id


def has_completed(database, number):
    return database.statuses()["COMPLETED"] > number


@pytest.mark.parametrize("task", [handlers.work, handlers.hold_gil])
def test_beside_a_task_that_lasts_its_worker_holds_nothing(database, start_worker, task):
    lasting = fill(database, *2 * [(task, 3)])
    start_worker()
    for task_id in lasting:
        wait_until(partial(holds_nothing_behind, database, task_id), seconds=60)
    assert database.wait_until_finished()["COMPLETED"] == MUCH + 2 * 2004
    assert database.rows("SELECT * FROM tasks_attempt") == database.rows("SELECT * FROM tasks_refusedwrite") == []


def test_a_worker_that_is_stopped_in_much_work_keeps_nothing(database, start_worker):
    fill(database)
    worker = start_worker()
    wait_until(partial(has_completed, database, MUCH / 8), seconds=120)
    assert worker.stop() == 0
    [ready] = database.rows(READY)
    assert (ready.least, ready.most) == (0, 0)
    assert ready.count + database.statuses()["COMPLETED"] == MUCH


def test_a_worker_that_is_killed_in_much_work_repeats_only_what_has_begun(database, start_worker):
    """By its supervisor's account: what is claimed ahead has an attempt less on it than what ran."""
    fill(database)
    worker = start_worker()
    for share in (0.1, 0.3):
        wait_until(partial(has_completed, database, share * MUCH), seconds=120)
        os.kill(worker.children()[0], signal.SIGKILL)
        wait_until(worker.children)
    assert database.wait_until_finished(seconds=120) == {"COMPLETED": MUCH}
    outcomes = dict(database.rows("SELECT outcome, count(*) FROM tasks_attempt GROUP BY outcome"))
    spent = database.value("SELECT sum(attempt - 1)::int FROM tasks_task")
    assert spent == outcomes.get("abandoned", 0) == sum(outcomes.values())
    assert database.rows("SELECT * FROM tasks_refusedwrite") == []
