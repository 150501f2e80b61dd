"""A worker dies: who gets its tasks, when, and what it costs them."""

import os
import re
import signal
from itertools import pairwise

import pytest

from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

# Nobody would wait for its end.
LONG_LEASE = {"ROWLOCK_LEASE_SECONDS": 3600}
# Only the supervisor itself can then take back what its child held: nobody looks at presence in time.
NO_SWEEPS = {"ROWLOCK_SWEEP_SECONDS": 3600, **LONG_LEASE}
# However slow the machine is, many tasks are then claimed together.
BIG_BATCHES = {"TEST_BATCH_SECONDS": 3600}
CLAIMED_TWICE = 5  # the version of a completed task: enqueued, claimed, released, claimed, completed


def test_a_killed_workers_task_starts_again_elsewhere_long_before_its_lease_ends(database, ledger, start_worker):
    first = start_worker(**LONG_LEASE)
    [task_id] = database.enqueue(handlers.work, 600.0, 0.0)
    wait_until(lambda: ledger.effects(task_id))
    second = start_worker(**LONG_LEASE)
    wait_until(lambda: database.value("SELECT count(*) FROM tasks_worker") == 2)
    killed_at = ledger.now()
    first.send_all(signal.SIGKILL)
    task = database.wait_for(task_id, "COMPLETED")

    dead = database.rows("SELECT * FROM tasks_worker WHERE pid = %s", ledger.effects(task_id)[0].pid)[0]
    [attempt] = database.rows("SELECT * FROM tasks_attempt")
    again = ledger.effects(task_id)[1]
    events = [killed_at, dead.missing_since, dead.stopped_at, attempt.finished_at, again.began, again.ended]
    assert sorted(events) == events
    assert task.finished_at >= again.ended
    assert (attempt.outcome, attempt.worker_id, dead.stop_reason) == ("abandoned", dead.id, "convicted")
    assert again.pid in second.children()


def test_an_own_childs_tasks_are_taken_back_at_once_and_only_the_begun_one_pays(database, ledger, start_worker):
    with database.connection.transaction():
        database.enqueue(handlers.quick, count=600)
        [killer] = database.enqueue(handlers.die, max_attempts=2)  # on its last attempt it is claimed alone
        behind = database.enqueue(handlers.work, count=50)
    start_worker(**NO_SWEEPS, **BIG_BATCHES)
    database.wait_until_finished()

    died, _ = ledger.effects(killer)
    attempt, _ = database.rows("SELECT * FROM tasks_attempt WHERE task_id = %s ORDER BY number", killer)
    assert attempt.outcome == "abandoned"
    assert CLAIMED_TWICE in {database.task(task_id).version for task_id in behind}, "nothing was claimed behind it"
    assert {database.task(task_id).attempt for task_id in behind} == {1}
    assert not any(database.outcomes(task_id) for task_id in behind)
    [successor] = {effect.pid for effect in ledger.effects() if effect.task_id in behind}
    assert successor != died.pid


def test_a_child_that_crashes_again_and_again_is_replaced_more_and_more_slowly(database, start_worker):
    database.enqueue(handlers.die, count=4, max_attempts=1)
    worker = start_worker()
    assert database.wait_until_finished() == {"FAILED": 4}
    worker.wait_until_it_says("another starts in 1.00 s")
    pauses = re.findall(r"died by signal 9; another starts in ([\d.]+) s", worker.log())
    assert pauses == ["0.00", "0.25", "0.50", "1.00"]
    wait_until(lambda: database.value("SELECT count(*) FROM tasks_worker") == 5)
    started = [row.started_at for row in database.rows("SELECT started_at FROM tasks_worker ORDER BY started_at")]
    gaps = [(later - earlier).total_seconds() for earlier, later in pairwise(started)]
    assert all(gap > pause for gap, pause in zip(gaps, map(float, pauses), strict=True))


@pytest.mark.parametrize("strategy", ["skip_locked", "optimistic", "pessimistic"])
def test_f14_a_task_that_kills_its_worker_ends_when_its_attempts_are_spent(database, ledger, start_worker, strategy):
    [task_id] = database.enqueue(handlers.die, max_attempts=3)
    start_worker("--strategy", strategy)
    assert database.wait_for(task_id, "FAILED").attempt == 3
    assert database.outcomes(task_id) == ["abandoned"] * 3
    assert [effect.attempt for effect in ledger.effects(task_id)] == [1, 2, 3]


def test_f02_rows_of_a_worker_that_never_registered_are_taken_back(database, start_worker):
    [task_id] = database.enqueue(handlers.work)
    database.rows("UPDATE tasks_task SET status = 'PROCESSING', claimed_by = 'nobody', attempt = 1")
    start_worker()
    assert database.wait_for(task_id, "COMPLETED").attempt == 2
    assert database.outcomes(task_id) == ["abandoned"]


def test_a_queue_that_asks_a_person_keeps_its_stale_task(database, ledger, start_worker):
    database.rows("INSERT INTO tasks_queue (name, recovery) VALUES ('payouts', 'ask')")
    [asking] = database.enqueue(handlers.work, 600.0, 0.0, queue="payouts")
    [automatic] = database.enqueue(handlers.work, 600.0, 0.0)
    worker = start_worker("--concurrency", 2)
    wait_until(lambda: ledger.count() == 2)
    for pid in worker.children():
        os.kill(pid, signal.SIGKILL)
    database.wait_for(automatic, "COMPLETED")
    assert database.task(asking).status == "PROCESSING"
    assert [effect.attempt for effect in ledger.effects(asking)] == [1]


REFUSE_POISON = """
CREATE FUNCTION test_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$;
CREATE TRIGGER test_refuse BEFORE UPDATE ON tasks_task FOR EACH ROW WHEN (OLD.queue_name = 'poison')
EXECUTE FUNCTION test_refuse()
"""


def test_a_task_that_the_database_will_not_give_back_ends_nobodys_sweeps(database, ledger, start_worker):
    """Two workers die, one after the other; the first with such a task. It is told of once."""
    [poison] = database.enqueue(handlers.work, 600.0, queue="poison")
    [first] = database.enqueue(handlers.work, 600.0, 0.0)
    [second] = database.enqueue(handlers.work, 600.0, 0.0, queue="other")
    first_to_die = start_worker("--concurrency", 2, "--queue", "default", "--queue", "poison")
    second_to_die = start_worker("--queue", "other")
    wait_until(lambda: all(ledger.effects(task_id) for task_id in (poison, first, second)))
    survivor = start_worker("--queue", "default")
    database.connection.execute(REFUSE_POISON)
    for worker, task_id, status in [(first_to_die, first, "COMPLETED"), (second_to_die, second, "READY")]:
        worker.send_all(signal.SIGKILL)
        database.wait_for(task_id, status)
    assert database.task(poison).status == "PROCESSING"
    assert database.value("SELECT error FROM tasks_recoveryfailure WHERE task_id = %s", poison) == "not this one"
    said = second_to_die.log() + survivor.log()
    assert said.count("not this one") == 1
    assert "the database did not answer" not in said
