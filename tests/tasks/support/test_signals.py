"""A run tells the framework's signals when somebody listens, and saves itself the trouble when nobody does."""

import logging

import pytest

from tasks.compat import FRAMEWORK, log_task_finished, task_finished, task_started
from tasks.worker import run
from tests.tasks.worker_app import tasks as handlers


@pytest.fixture
def log():
    """The framework's log, at WARNING, and afterwards as it was."""
    log = logging.getLogger(FRAMEWORK)
    level = log.level
    log.setLevel(logging.WARNING)
    yield log
    log.setLevel(level)


def test_nobody_listens_at_first(log):
    assert not run.are_heard()


@pytest.mark.parametrize("signal", [task_started, task_finished], ids=["started", "finished"])
def test_a_receiver_listens_until_it_is_disconnected(log, signal):
    def receive(**_):
        pass

    signal.connect(receive)
    try:
        assert run.are_heard()
    finally:
        signal.disconnect(receive)
    assert not run.are_heard()


def test_so_does_one_in_place_of_the_frameworks_log(log):
    def receive(**_):
        pass

    task_finished.disconnect(log_task_finished)
    task_finished.connect(receive)
    try:
        assert run.are_heard()
    finally:
        task_finished.disconnect(receive)
        task_finished.connect(log_task_finished)


def test_a_log_of_every_run_is_kept(log):
    log.setLevel(logging.INFO)
    assert run.are_heard()


def test_a_worker_tells_a_receiver_that_came_while_it_worked(database, ledger, start_worker):
    start_worker()
    [first] = database.enqueue(handlers.listen)
    database.wait_for(first, "COMPLETED")
    [second] = database.enqueue(handlers.quick)
    database.wait_for(second, "COMPLETED")
    assert [effect.attempt for effect in ledger.effects(second)] == [1]
