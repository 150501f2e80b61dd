"""Several tasks at once in one process keep every promise that a task alone keeps."""

import pytest

from tests.ledger import most_at_once
from tests.tasks.worker_app import pooled
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

WIDE = ("--threads", 8, "--coroutines", 50)


def test_threads_run_at_once_in_one_process(database, ledger, start_worker):
    database.enqueue(handlers.work, 0.3, count=40)
    worker = start_worker("--threads", 8, "--burst")
    assert worker.wait() == 0
    assert worker.report() == {"claimed": 40, "completed": 40, "failed": 0, "refused": 0}
    assert len({effect.pid for effect in ledger.effects()}) == 1
    assert most_at_once(ledger.effects()) == 8


def test_coroutines_run_at_once_in_one_process(database, ledger, start_worker):
    database.enqueue(pooled.rest, 0.5, count=150)
    worker = start_worker("--coroutines", 50, "--burst")
    assert worker.wait() == 0
    assert worker.report()["completed"] == 150
    assert most_at_once(ledger.effects()) == 50


COUNT_CLAIMS = """
CREATE TABLE claim_statement (tasks int);
CREATE FUNCTION count_claims() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO claim_statement SELECT count(*) FROM claimed WHERE status = 'PROCESSING' HAVING count(*) > 0;
    RETURN NULL;
END $$;
CREATE TRIGGER count_claims AFTER UPDATE ON tasks_task REFERENCING NEW TABLE AS claimed
    FOR EACH STATEMENT EXECUTE FUNCTION count_claims();
"""
FORGET_CLAIMS = "DROP TRIGGER count_claims ON tasks_task; DROP FUNCTION count_claims; DROP TABLE claim_statement"


def test_coroutines_that_come_together_are_claimed_together(database, start_worker):
    """One, two, four and so on at a time, each claim with a commit, let the last of them wait for long."""
    database.connection.execute(COUNT_CLAIMS)
    try:
        start_worker("--coroutines", 50)
        database.enqueue(pooled.rest, 0.0)
        database.wait_until_finished()
        database.enqueue(pooled.rest, 0.0, count=40)
        database.wait_until_finished()
        assert [row.tasks for row in database.rows("SELECT tasks FROM claim_statement")] == [1, 40]
    finally:
        database.connection.execute(FORGET_CLAIMS)


def test_both_kinds_share_a_process(database, ledger, start_worker):
    with database.connection.transaction():
        for _ in range(20):
            database.enqueue(handlers.work, 0.05, count=2)
            database.enqueue(pooled.rest, 0.05, count=5)
    worker = start_worker(*WIDE, "--burst")
    assert worker.wait() == 0
    assert database.statuses() == {"COMPLETED": 140}
    assert {row.attempt for row in database.rows("SELECT attempt FROM tasks_task")} == {1}
    assert ledger.count() == 140


def test_one_key_never_runs_twice_at_once(database, ledger, start_worker):
    for key in range(10):
        database.enqueue(handlers.work, 0.01, count=6, ordering_key=f"sync:{key}")
        database.enqueue(pooled.rest, 0.01, count=6, ordering_key=f"async:{key}")
    worker = start_worker(*WIDE, "--burst")
    assert worker.wait() == 0
    assert database.statuses() == {"COMPLETED": 120}
    keys = dict(database.rows("SELECT id, ordering_key FROM tasks_task"))
    for key in set(keys.values()):
        effects = [effect for effect in ledger.effects() if keys[effect.task_id] == key]
        assert most_at_once(effects) == 1
        assert [effect.task_id for effect in effects] == sorted(effect.task_id for effect in effects)
    assert most_at_once(ledger.effects()) > 4


def test_the_row_names_every_task_that_runs(database, ledger, start_worker):
    running = database.enqueue(handlers.work, 60.0, count=3) + database.enqueue(pooled.rest, 60.0, count=3)
    start_worker("--threads", 3, "--coroutines", 3)

    def all_are_named():
        return database.value("SELECT count(*) FROM tasks_worker WHERE running_ids @> %s::bigint[]", running)

    wait_until(all_are_named)
    assert database.value("SELECT current_task_id = ANY(running_ids) FROM tasks_worker")


def test_slow_tasks_leave_the_rest_to_other_workers(database, ledger, start_worker):
    """Short tasks make the first worker claim many; then its threads are taken, and the rest must not wait for them."""
    with database.connection.transaction():
        database.enqueue(handlers.quick, count=2000)
        slow = database.enqueue(handlers.work, 20.0, count=2)
        rest = database.enqueue(handlers.work, 0.0, count=30)
    first = start_worker("--threads", 2)
    wait_until(lambda: ledger.count() == 2)
    start_worker()
    for task_id in rest:
        assert database.wait_for(task_id, "COMPLETED", seconds=15).attempt == 1
    assert {database.task(task_id).status for task_id in slow} == {"PROCESSING"}
    assert len(first.children()) == 1


def test_a_kind_without_a_free_slot_does_not_keep_what_others_can_run(database, ledger, start_worker):
    with database.connection.transaction():
        database.enqueue(pooled.rest, 0.0, count=50)
        slow = database.enqueue(handlers.work, 20.0, count=1)
        rest = database.enqueue(handlers.work, 0.0, count=30)
        coroutines = database.enqueue(pooled.rest, 0.0, count=30)
    start_worker("--coroutines", 50)
    wait_until(lambda: ledger.effects(slow[0]))
    start_worker()
    for task_id in rest + coroutines:
        assert database.wait_for(task_id, "COMPLETED", seconds=15).attempt == 1


def test_a_signal_lets_what_runs_end_and_gives_back_the_rest(database, ledger, start_worker):
    database.enqueue(handlers.work, 1.0, count=20)
    database.enqueue(pooled.rest, 1.0, count=80)
    worker = start_worker(*WIDE)
    wait_until(lambda: ledger.count() >= 58)
    assert worker.stop() == 0
    begun = {effect.task_id for effect in ledger.effects()}
    assert worker.report() == {"claimed": len(begun), "completed": len(begun), "failed": 0, "refused": 0}
    assert all(effect.ended for effect in ledger.effects())
    statuses = dict(database.rows("SELECT id, (status, attempt)::text FROM tasks_task"))
    assert {statuses[task_id] for task_id in begun} == {"(COMPLETED,1)"}
    assert {status for task_id, status in statuses.items() if task_id not in begun} == {"(READY,0)"}


def test_a_limited_number_of_tasks(database, ledger, start_worker):
    database.enqueue(pooled.rest, 0.05, count=60)
    worker = start_worker("--coroutines", 20, "--max-tasks", 33)
    assert worker.wait() == 0
    assert database.statuses() == {"COMPLETED": 33, "READY": 27}


def test_a_new_task_starts_at_once_beside_long_ones(database, ledger, start_worker):
    database.enqueue(pooled.rest, 60.0, count=5)
    start_worker("--coroutines", 50, TEST_POLL_SECONDS=30)
    wait_until(lambda: ledger.count() == 5)
    for _ in range(5):
        [task_id] = database.enqueue(pooled.rest, 0.0)
        database.wait_for(task_id, "COMPLETED", seconds=10)


def test_a_worker_that_looks_for_lost_answers_keeps_what_runs(database, ledger, start_worker):
    long = database.enqueue(pooled.rest, 3.0, count=5)
    start_worker("--coroutines", 50, TEST_CHECK_SECONDS=1)
    wait_until(lambda: ledger.count() == 5)
    database.rows("SELECT pg_sleep(1)")
    [after] = database.enqueue(pooled.rest)
    database.wait_for(after, "COMPLETED")
    assert {database.wait_for(task_id, "COMPLETED").attempt for task_id in long} == {1}
    assert ledger.count() == 6


@pytest.mark.parametrize("arguments", [("--threads", "257"), ("--coroutines", "2001"), ("--threads", "0")])
def test_too_many_are_wrong_usage(start_worker, arguments):
    worker = start_worker(*arguments)
    assert worker.wait() == 2
    assert f"a count: a whole number from 1 to {2000 if 'coroutines' in arguments[0] else 256}" in worker.log()
