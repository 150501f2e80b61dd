"""The pessimistic strategy: the row stays locked through the work, and the handler's own writes share its fate."""

from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until


def queues(database):
    return [row.name for row in database.rows("SELECT name FROM tasks_queue")]


def test_the_handlers_writes_commit_with_the_completion(database, ledger, start_worker):
    [task_id] = database.enqueue(handlers.write_row, "made", 1.0)
    start_worker("--strategy", "pessimistic")
    wait_until(lambda: ledger.effects(task_id))
    wait_until(lambda: is_locked(database, task_id))
    assert queues(database) == []
    assert database.task(task_id).status == "PROCESSING"
    database.wait_for(task_id, "COMPLETED")
    assert queues(database) == ["made"]


def test_the_handlers_writes_are_lost_with_the_completion(database, start_worker):
    database.rows(REFUSE_COMPLETIONS)
    [task_id] = database.enqueue(handlers.write_row, "lost", max_attempts=1)
    start_worker("--strategy", "pessimistic")
    database.wait_for(task_id, "FAILED")
    assert "this database completes nothing" in database.value("SELECT traceback FROM tasks_attempt")
    assert queues(database) == []


def test_the_handlers_writes_are_rolled_back_when_it_fails(database, start_worker):
    [task_id] = database.enqueue(handlers.write_row, "lost", 0.0, True, max_attempts=1)
    start_worker("--strategy", "pessimistic")
    database.wait_for(task_id, "FAILED")
    assert database.outcomes(task_id) == ["failed"]
    assert queues(database) == []


def test_what_runs_is_passed_over_by_who_skips_locked_rows(database, ledger, start_worker):
    [task_id] = database.enqueue(handlers.write_row, "made", 1.0)
    start_worker("--strategy", "pessimistic")
    wait_until(lambda: ledger.effects(task_id))
    assert is_locked(database, task_id)
    holder = database.value(HOLDER, task_id)
    [worker_id] = [row.id for row in database.rows("SELECT id FROM tasks_worker")]
    assert holder == f"rowlock:worker:{worker_id}"
    database.wait_for(task_id, "COMPLETED")
    assert not is_locked(database, task_id)


def is_locked(database, task_id):
    return not database.rows("SELECT id FROM tasks_task WHERE id = %s FOR NO KEY UPDATE SKIP LOCKED", task_id)


REFUSE_COMPLETIONS = """
CREATE FUNCTION refuse_completion() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'this database completes nothing'; END $$;
CREATE TRIGGER refuse_completion BEFORE UPDATE ON tasks_task FOR EACH ROW WHEN (NEW.status = 'COMPLETED')
    EXECUTE FUNCTION refuse_completion()
"""

HOLDER = """
SELECT application_name FROM tasks_task AS task
JOIN pg_locks AS held ON held.locktype = 'transactionid' AND held.transactionid = task.xmax AND held.granted
JOIN pg_stat_activity AS session USING (pid)
WHERE task.id = %s AND held.mode = 'ExclusiveLock'
"""
