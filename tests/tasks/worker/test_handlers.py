"""Handlers that behave as badly as they can: each ends as a recorded failure, and the worker goes on."""

import pytest

from tests.tasks.worker_app import tasks as handlers

FAILING = [
    (handlers.fail_in_broken_transaction, "django.db.utils.OperationalError", "connection is closed"),
    (handlers.exit_python, "builtins.SystemExit", "SystemExit: 0"),
    (handlers.interrupt, "builtins.KeyboardInterrupt", "KeyboardInterrupt"),
    (handlers.return_nul, "tasks.exceptions.InvalidArguments", "NUL"),
    (handlers.return_object, "builtins.TypeError", "Unsupported type: <class 'object'>"),
    (handlers.raise_nul, "builtins.ValueError", r"before\x00after"),
]


def enqueue_all(database):
    """Each bad handler, with a task behind it that uses the database; ids of the bad ones and of the others."""
    with database.connection.transaction():
        database.enqueue(handlers.quick, count=600)
        pairs = [(*database.enqueue(handler), *database.enqueue(handlers.count_queues)) for handler, _, _ in FAILING]
    return zip(*pairs, strict=True)


@pytest.mark.parametrize("arguments", [(), ("--strategy", "pessimistic"), ("--threads", 4)])
def test_f16_what_a_handler_does_wrong_is_its_own_failure_alone(database, start_worker, arguments):
    bad, others = enqueue_all(database)
    worker = start_worker(*arguments, "--burst")
    assert worker.wait() == 0
    for task_id, (_, exception_class, text) in zip(bad, FAILING, strict=True):
        [attempt] = database.rows("SELECT * FROM tasks_attempt WHERE task_id = %s", task_id)
        assert (attempt.outcome, attempt.exception_class) == ("failed", exception_class)
        assert text in attempt.traceback
        assert database.task(task_id).status == "FAILED"
    assert {(database.task(task_id).status, database.task(task_id).return_value) for task_id in others} == {
        ("COMPLETED", 0)
    }
    assert worker.report() == {"claimed": 612, "completed": 606, "failed": 6, "refused": 0}
    assert database.value("SELECT count(*) FROM tasks_worker") == 1, "a handler has cost its worker's process"


@pytest.mark.parametrize("handler", [handlers.leave_transaction_open, handlers.enter_atomic_and_return])
def test_a_handler_that_returns_inside_a_transaction_has_failed_each_time(database, start_worker, handler):
    with database.connection.transaction():
        database.enqueue(handlers.quick, count=600)
        failing = database.enqueue(handler, count=2)
        others = database.enqueue(handlers.count_queues, count=3)
    assert start_worker("--burst").wait() == 0
    attempts = database.rows("SELECT * FROM tasks_attempt ORDER BY task_id")
    assert [(attempt.task_id, attempt.outcome) for attempt in attempts] == [(id, "failed") for id in failing]
    assert all("returned with a transaction open" in attempt.traceback for attempt in attempts)
    assert {database.task(other).status for other in others} == {"COMPLETED"}
    assert database.rows("SELECT * FROM tasks_queue") == []


def test_arguments_that_python_cannot_read_fail_the_task_alone(database, start_worker):
    with database.connection.transaction():
        database.enqueue(handlers.quick, count=600)
        [task_id] = database.enqueue(handlers.work, max_attempts=1)
        database.rows("UPDATE tasks_task SET args = ('[' || repeat('9', 5000) || ']')::jsonb WHERE id = %s", task_id)
    assert start_worker("--burst").wait() == 0
    assert database.statuses() == {"COMPLETED": 600, "FAILED": 1}
    assert "Exceeds the limit" in database.value("SELECT traceback FROM tasks_attempt")
    assert database.value("SELECT count(*) FROM tasks_worker") == 1


def test_a_handler_that_breaks_its_connection_breaks_nobody_elses(database, start_worker):
    with database.connection.transaction():
        database.enqueue(handlers.quick, count=600)
        breaking = database.enqueue(handlers.break_connection)
        others = database.enqueue(handlers.count_queues, count=20)
    assert start_worker("--burst").wait() == 0
    assert {database.task(task_id).status for task_id in breaking + others} == {"COMPLETED"}
    assert database.value("SELECT count(*) FROM tasks_attempt") == 0


def test_what_handlers_print_does_not_reach_the_report(database, start_worker):
    [task_id] = database.enqueue(handlers.print_much, 5)
    worker = start_worker("--burst")
    assert worker.wait() == 0
    assert database.task(task_id).status == "COMPLETED"
    assert worker.report() == {"claimed": 1, "completed": 1, "failed": 0, "refused": 0}
    assert worker.log().count("x") >= 5_000_000
