"""What `run_worker` is told at the command line: how long, how much, how many, which queues."""

import signal

import pytest

from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until


def test_a_burst_ends_when_nothing_is_due(database, ledger, start_worker):
    database.enqueue(handlers.work, count=30)
    [later] = database.enqueue(handlers.work, run_after_seconds=3600.0)
    worker = start_worker("--burst", "--concurrency", 2)
    assert worker.wait() == 0
    assert worker.report() == {"claimed": 30, "completed": 30, "failed": 0, "refused": 0}
    assert database.task(later).status == "READY"
    assert ledger.count() == 30


def test_a_burst_takes_back_the_tasks_of_the_dead_first(database, ledger, start_worker):
    [task_id] = database.enqueue(handlers.work, 600.0, 0.0)
    dead = start_worker()
    wait_until(lambda: ledger.effects(task_id))
    dead.send_all(signal.SIGKILL)
    dead.wait()
    assert start_worker("--burst").wait() == 0
    assert database.task(task_id).status == "COMPLETED"
    assert database.outcomes(task_id) == ["abandoned"]


@pytest.mark.parametrize("strategy", ["skip_locked", "optimistic", "pessimistic"])
def test_max_tasks_is_exact_over_several_children(database, ledger, start_worker, strategy):
    database.enqueue(handlers.work, 0.001, count=100)
    worker = start_worker("--max-tasks", 37, "--concurrency", 3, "--strategy", strategy)
    assert worker.wait() == 0
    assert database.statuses() == {"COMPLETED": 37, "READY": 63}
    assert ledger.count() == 37
    assert worker.report()["completed"] == 37


def test_max_tasks_does_not_count_what_was_given_back_behind_a_slow_task(database, start_worker):
    with database.connection.transaction():
        database.enqueue(handlers.quick, count=600)
        database.enqueue(handlers.work, 0.8)
        database.enqueue(handlers.quick, count=100)
    assert start_worker("--max-tasks", 660).wait() == 0
    assert database.statuses() == {"COMPLETED": 660, "READY": 41}


def test_max_tasks_does_not_count_what_a_dead_child_had_not_begun(database, start_worker):
    with database.connection.transaction():
        database.enqueue(handlers.quick, count=600)
        [killer] = database.enqueue(handlers.die, max_attempts=1)
        database.enqueue(handlers.quick, count=100)
    assert start_worker("--max-tasks", 660).wait() == 0
    statuses = database.statuses()
    begun_twice = database.value("SELECT count(*) FROM tasks_attempt WHERE task_id <> %s", killer)
    assert statuses["COMPLETED"] + statuses["FAILED"] + begun_twice == 660


def test_the_report_counts_what_the_database_counts(database, start_worker):
    database.enqueue(handlers.work, count=20)
    database.enqueue(handlers.exit_python, count=5)
    worker = start_worker("--burst", "--concurrency", 2)
    assert worker.wait() == 0
    assert database.statuses() == {"COMPLETED": 20, "FAILED": 5}
    assert worker.report() == {"claimed": 25, "completed": 20, "failed": 5, "refused": 0}
    counted = database.rows("SELECT sum(completed)::int AS completed, sum(failed)::int AS failed FROM tasks_throughput")
    assert counted == [(20, 5)]


def test_concurrency_runs_as_many_tasks_at_once(database, ledger, start_worker):
    database.enqueue(handlers.meet, 3, count=3)
    worker = start_worker("--concurrency", 3)
    assert database.wait_until_finished() == {"COMPLETED": 3}
    effects = ledger.effects()
    assert max(effect.began for effect in effects) < min(effect.ended for effect in effects)
    assert {effect.pid for effect in effects} == set(worker.children())
    assert database.value("SELECT count(*) FROM tasks_worker") == 3


def test_only_the_named_queues_are_served_the_first_named_first(database, ledger, start_worker):
    [third] = database.enqueue(handlers.work, queue="other")
    [second] = database.enqueue(handlers.work, queue="low")
    [first] = database.enqueue(handlers.work, queue="high")
    worker = start_worker("--queue", "high", "--queue", "low", "--burst")
    assert worker.wait() == 0
    assert [effect.task_id for effect in ledger.effects()] == [first, second]
    assert database.task(third).status == "READY"
    assert database.value("SELECT queues FROM tasks_worker") == ["high", "low"]


def test_a_paused_queue_waits_until_it_is_resumed(database, start_worker):
    database.rows("INSERT INTO tasks_queue (name, paused) VALUES ('default', true)")
    [paused] = database.enqueue(handlers.work)
    [beside] = database.enqueue(handlers.work, queue="beside")
    start_worker()
    database.wait_for(beside, "COMPLETED")
    assert database.task(paused).version == 1
    database.rows("UPDATE tasks_queue SET paused = false")
    database.wait_for(paused, "COMPLETED")


def test_no_more_than_the_batch_size_is_claimed_at_once(database, start_worker):
    database.enqueue(handlers.quick, count=300)
    database.enqueue(handlers.count_claimed, count=20)
    assert start_worker("--batch-size", 3, "--burst").wait() == 0
    claimed = database.rows(
        "SELECT DISTINCT return_value::int AS rows FROM tasks_task WHERE task_path LIKE '%%count_claimed'"
    )
    assert max(row.rows for row in claimed) == 3
