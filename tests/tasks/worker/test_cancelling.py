"""Requests of operators: cancel a task that a worker holds, stop one worker."""

from tasks.queue import wakeup
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until


def ask_to_cancel(database, task_id):
    database.rows("UPDATE tasks_task SET cancel_requested_at = clock_timestamp() WHERE id = %s", task_id)
    wakeup.summon(database.connection)


def ask_to_stop(database, worker_id):
    database.rows("UPDATE tasks_worker SET stop_requested_at = clock_timestamp() WHERE id = %s", worker_id)
    wakeup.summon(database.connection)


def test_running_tasks_are_ended_when_they_are_cancelled(database, ledger, start_worker):
    """Three in a row: a supervisor that was not summoned looks once a second, and could be in time once by luck."""
    cancelled = database.enqueue(handlers.work, 600.0, count=3)
    worker = start_worker()
    for task_id in cancelled:
        wait_until(lambda: ledger.effects(task_id))  # noqa: B023  called before the loop goes on
        ask_to_cancel(database, task_id)
        database.wait_for(task_id, "CANCELLED")
        assert database.outcomes(task_id) == ["released"]
    [after] = database.enqueue(handlers.work)
    database.wait_for(after, "COMPLETED")
    assert len({effect.pid for effect in ledger.effects()}) == 4, "each cancelled task costs one child"
    assert [ledger.effects(after)[0].pid] == worker.children()


def test_a_task_that_was_claimed_ahead_is_cancelled_without_a_run(database, ledger, start_worker):
    with database.connection.transaction():
        database.enqueue(handlers.quick, count=600)
        database.enqueue(handlers.cancel_a_later_one, 5)
        ahead = database.enqueue(handlers.work, 0.2, count=4)  # none is slow enough for the rest to be given back
        [cancelled, beside] = database.enqueue(handlers.work, count=2)
    start_worker()
    task = database.wait_for(cancelled, "CANCELLED")
    assert (task.attempt, task.claimed_by) == (0, None)
    assert database.wait_for(beside, "COMPLETED").attempt == 1
    assert {database.wait_for(task_id, "COMPLETED").attempt for task_id in ahead} == {1}
    assert not ledger.effects(cancelled)


def test_a_cancelled_task_that_fails_by_itself_is_not_tried_again(database, ledger, start_worker):
    [task_id] = database.enqueue(handlers.cancel_itself_and_fail)
    start_worker()
    assert database.wait_for(task_id, "CANCELLED").attempt == 1
    assert ledger.count() == 1


def test_a_worker_that_is_asked_to_stop_stops_alone_and_is_not_replaced(database, ledger, start_worker):
    database.enqueue(handlers.work, 1.0, count=2)
    worker = start_worker("--concurrency", 2)
    wait_until(lambda: ledger.count() == 2)
    leaving, staying = database.rows("SELECT * FROM tasks_worker ORDER BY id")
    ask_to_stop(database, leaving.id)

    def one_is_left():
        return worker.children() == [staying.pid]

    wait_until(one_is_left)
    after = database.enqueue(handlers.work, 0.05, count=40)
    assert database.wait_until_finished() == {"COMPLETED": 42}
    assert [effect.attempt for effect in ledger.effects()] == [1] * 42
    assert {effect.pid for effect in ledger.effects() if effect.task_id in after} == {staying.pid}
    stopped = database.rows("SELECT id, stop_reason FROM tasks_worker WHERE stopped_at IS NOT NULL")
    assert stopped == [(leaving.id, "stopped")]
    assert worker.children() == [staying.pid]
    assert database.value("SELECT count(*) FROM tasks_worker") == 2


def test_a_supervisor_whose_workers_were_all_asked_to_stop_ends(database, start_worker):
    worker = start_worker()
    wait_until(lambda: database.value("SELECT count(*) FROM tasks_worker") == 1)
    ask_to_stop(database, database.value("SELECT id FROM tasks_worker"))
    assert worker.wait() == 0
