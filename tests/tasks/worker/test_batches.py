"""What is claimed ahead must not wait behind a slow task, nor spin when nobody knows its function."""

import pytest

from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

CLAIMED_TWICE = 5  # the version of a completed task that was released once before


def test_quick_tasks_do_not_wait_behind_a_slow_one(database, ledger, start_worker):
    """The worker beside it takes them: they end before the slow one does."""
    worker = start_worker("--concurrency", 2)
    wait_until(lambda: database.value("SELECT count(*) FROM tasks_worker") == 2)
    for _ in range(5):  # on a busy machine the batches may have become too small to hold anything behind the slow one
        database.enqueue(handlers.quick, count=2000)
        database.wait_until_finished()
        with database.connection.transaction():
            database.enqueue(handlers.quick, count=600)
            [slow] = database.enqueue(handlers.work, 2.0)
            behind = database.enqueue(handlers.work, count=50)
        database.wait_until_finished()
        if CLAIMED_TWICE in {database.task(task_id).version for task_id in behind}:
            break
    else:
        pytest.fail("nothing was ever claimed behind it")

    effects = {effect.task_id: effect for effect in ledger.effects()}
    assert max(effects[task_id].ended for task_id in behind) < effects[slow].ended
    assert {effects[task_id].attempt for task_id in behind} == {1}
    assert {effects[task_id].pid for task_id in behind} == set(worker.children()) - {effects[slow].pid}


def test_a_single_worker_gives_back_what_waits_behind_a_slow_task(database, ledger, start_worker):
    with database.connection.transaction():
        database.enqueue(handlers.quick, count=600)
        [slow] = database.enqueue(handlers.work, 1.0)
        behind = database.enqueue(handlers.work, count=50)
    start_worker()
    wait_until(lambda: ledger.effects(slow))

    def the_rest_is_ready():
        return {database.task(task_id).status for task_id in behind} == {"READY"}

    wait_until(the_rest_is_ready)
    assert database.task(slow).status == "PROCESSING"
    assert database.value("SELECT current_task_id FROM tasks_worker") == slow
    assert database.wait_until_finished() == {"COMPLETED": 651}
    assert {database.task(task_id).attempt for task_id in behind} == {1}


def test_a_task_that_nobody_knows_is_parked_and_costs_nothing(database, ledger, start_worker):
    [unknown] = database.enqueue("billing.tasks.charge")
    worker = start_worker("--concurrency", 2)
    database.enqueue(handlers.work, 0.1, count=40)

    def all_others_are_done():
        return database.statuses() == {"COMPLETED": 40, "READY": 1}

    wait_until(all_others_are_done)
    task = database.task(unknown)
    assert (task.status, task.attempt, database.outcomes(unknown)) == ("READY", 0, [])
    assert task.version == 3, "it was claimed more than once in two seconds"
    assert (task.run_after - task.created_at).total_seconds() > 4
    assert "no task is registered as 'billing.tasks.charge' here" in worker.log()
