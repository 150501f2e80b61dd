"""Relaxed commits: a handler's own do not wait for the disk, and nobody else's are relaxed with them."""

import pytest

from tests.tasks.worker_app import pooled
from tests.tasks.worker_app import tasks as handlers

ARGUMENTS = [(), ("--threads", 4, "--coroutines", 4)]


def shown(database, *tasks):
    """The `synchronous_commit` that each task of these saw, in order, by its handler."""
    return [database.task(task_id).return_value for task_id in tasks]


def enqueue_mixed(database):
    """Relaxed tasks and others in turn, some of which fail or break their session."""
    with database.connection.transaction():
        relaxed, usual = [], []
        for _ in range(5):
            relaxed += database.enqueue(pooled.commit_relaxed) + database.enqueue(pooled.commit_relaxed_async)
            usual += database.enqueue(pooled.commit_as_usual) + database.enqueue(pooled.commit_as_usual_async)
            database.enqueue(pooled.commit_relaxed, True, max_attempts=1)
            usual += database.enqueue(pooled.commit_as_usual)
            database.enqueue(handlers.break_connection)
            relaxed += database.enqueue(pooled.commit_relaxed)
    return relaxed, usual


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_the_handlers_session_is_relaxed_for_its_task_alone(database, start_worker, arguments):
    relaxed, usual = enqueue_mixed(database)
    assert start_worker(*arguments, "--burst").wait() == 0
    assert set(shown(database, *relaxed)) == {"off"}
    assert set(shown(database, *usual)) == {"on"}


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_the_setting_is_for_all_tasks_that_do_not_refuse(database, start_worker, arguments):
    relaxed = database.enqueue(pooled.commit_as_usual, count=5) + database.enqueue(pooled.commit_as_usual_async)
    [refusing] = database.enqueue(pooled.never_relax)
    assert start_worker(*arguments, "--burst", ROWLOCK_RELAXED_COMMIT=1).wait() == 0
    assert set(shown(database, *relaxed)) == {"off"}
    assert shown(database, refusing) == ["on"]


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_a_transaction_that_writes_the_completion_waits(database, start_worker, arguments):
    tasks = database.enqueue(pooled.commit_relaxed, count=5) + database.enqueue(pooled.commit_relaxed_async)
    assert start_worker(*arguments, "--burst", "--strategy", "pessimistic").wait() == 0
    assert set(shown(database, *tasks)) == {"on"}


def test_a_session_that_a_proxy_may_lend_to_others_is_never_relaxed(database, start_worker):
    [task_id] = database.enqueue(pooled.commit_relaxed)
    assert start_worker("--burst", DIRECT_DATABASE_URL=database.url).wait() == 0
    assert shown(database, task_id) == ["on"]
