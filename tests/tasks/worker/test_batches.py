"""What is claimed ahead must not wait behind a slow task, nor spin when nobody knows its function."""

import pytest

from tests.chaos.gated import tasks as gated
from tests.processes import HANDLERS_APP
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

# However slow the machine is, many tasks are then claimed together.
BIG_BATCHES = {"TEST_BATCH_SECONDS": 3600}
CLAIMED_ONCE = 3  # the version of a task that was released
CLAIMED_TWICE = 5  # the version of a completed task that was released once before


@pytest.fixture
def gates(database, ledger, start_worker):
    """Workers whose slow task waits at a gate, with quick ones before it and others behind it in its batch."""

    def start(*options):
        with database.connection.transaction():
            database.enqueue(handlers.quick, count=600)
            [slow] = database.enqueue(gated.wait_at_the_gate)
            behind = database.enqueue(handlers.work, count=50)
        return start_worker(*options, ROWLOCK_APPS=f"{HANDLERS_APP},{gated.APP}", **BIG_BATCHES), slow, behind

    with gated.shut_gate(ledger.url) as gate:
        yield start, gate


def test_quick_tasks_do_not_wait_behind_a_slow_one(database, ledger, gates):
    """The worker beside it takes them: they end before the slow one does."""
    start, gate = gates
    worker, slow, behind = start("--concurrency", 2)
    wait_until(lambda: {database.task(task_id).status for task_id in behind} == {"COMPLETED"})
    assert database.task(slow).status == "PROCESSING"
    assert CLAIMED_TWICE in {database.task(task_id).version for task_id in behind}, "nothing was claimed behind it"
    gate.close()
    database.wait_until_finished()

    effects = {effect.task_id: effect for effect in ledger.effects()}
    assert {effects[task_id].attempt for task_id in behind} == {1}
    assert {effects[task_id].pid for task_id in behind} == set(worker.children()) - {effects[slow].pid}


def test_a_single_worker_gives_back_what_waits_behind_a_slow_task(database, gates):
    start, gate = gates
    _, slow, behind = start()

    def the_rest_is_ready():
        return {(row.status, row.version) for row in map(database.task, behind)} == {("READY", CLAIMED_ONCE)}

    wait_until(the_rest_is_ready)
    assert database.task(slow).status == "PROCESSING"
    assert database.value("SELECT current_task_id FROM tasks_worker") == slow
    gate.close()
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
    assert (task.status, task.attempt, database.outcomes(unknown)) == ("READY", 0, ["released"])
    assert task.version == 3, "it was claimed more than once in two seconds"
    assert (task.run_after - task.created_at).total_seconds() > 4
    assert "no task is registered as 'billing.tasks.charge' here" in worker.log()
