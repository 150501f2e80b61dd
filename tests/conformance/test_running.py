"""Running tasks: outcome, times, errors, context, signals and log."""

import logging
import sys

import pytest
from asgiref.sync import async_to_sync
from django.utils import timezone

from tasks.compat import FRAMEWORK, TaskResultStatus, task_finished, task_started
from tests.conformance import tasks


@pytest.fixture
def signals():
    """(which, sender, id, status, exception in sight) of each signal of running."""
    heard = []

    def started(sender, task_result, **kwargs):
        heard.append(("started", sender, task_result.id, task_result.status, sys.exc_info()[0]))

    def finished(sender, task_result, **kwargs):
        heard.append(("finished", sender, task_result.id, task_result.status, sys.exc_info()[0]))

    task_started.connect(started)
    task_finished.connect(finished)
    yield heard
    task_started.disconnect(started)
    task_finished.disconnect(finished)


def failed(subject, declared):
    return subject.finish(subject.only_once(declared).enqueue())


@pytest.mark.parametrize("declared", [tasks.answer, tasks.answer_async])
def test_success(running_backend, declared):
    result = running_backend.finish(declared.enqueue())
    assert (result.status, result.is_finished, result.return_value) == (TaskResultStatus.SUCCESSFUL, True, 42)
    assert result.enqueued_at <= result.started_at <= result.finished_at <= timezone.now()
    assert result.last_attempted_at == result.started_at
    assert (result.attempts, len(result.worker_ids), result.errors) == (1, 1, [])
    assert result.task == declared


def test_success_of_what_was_enqueued_by_a_coroutine(running_backend):
    result = async_to_sync(tasks.answer.aenqueue)()
    assert running_backend.finish(result).return_value == 42


def test_the_return_value_is_what_json_makes_of_it(running_backend):
    assert running_backend.finish(tasks.pair.enqueue()).return_value == [1, 2]


@pytest.mark.parametrize(
    ("declared", "kind", "end"),
    [
        (tasks.raise_value_error, ValueError, "ValueError: this value is wrong\n"),
        (tasks.raise_system_exit, SystemExit, "SystemExit: it wants to leave\n"),
        (tasks.raise_nested, ValueError, "ValueError: one inside another\n"),
    ],
)
def test_an_exception_is_the_outcome_and_not_the_backend_s(running_backend, declared, kind, end):
    result = failed(running_backend, declared)
    assert (result.status, result.is_finished, result.attempts) == (TaskResultStatus.FAILED, True, 1)
    assert result.enqueued_at <= result.started_at <= result.finished_at
    [error] = result.errors
    assert error.exception_class is kind
    assert error.traceback.startswith("Traceback (most recent call last):")
    assert error.traceback.endswith(end)
    assert f"in {declared.name}" in error.traceback
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


def test_a_return_value_that_is_no_json_fails_the_task(running_backend):
    result = failed(running_backend, tasks.give_no_json)
    assert result.status == TaskResultStatus.FAILED
    assert result.errors[0].exception_class is TypeError
    assert "Unsupported type" in result.errors[0].traceback


def test_the_context_shows_the_running_task(running_backend):
    result = running_backend.finish(tasks.describe_context.enqueue("a"))
    assert result.return_value == [1, result.id, "RUNNING", ["a"], "describe_context"]


def test_signals_of_a_success(in_process_backend, signals):
    result = in_process_backend.finish(tasks.answer.enqueue())
    sender = type(in_process_backend.backend)
    assert signals == [
        ("started", sender, result.id, TaskResultStatus.RUNNING, None),
        ("finished", sender, result.id, TaskResultStatus.SUCCESSFUL, None),
    ]


def test_signals_of_a_failure_have_the_exception_in_sight(in_process_backend, signals):
    result = failed(in_process_backend, tasks.raise_value_error)
    sender = type(in_process_backend.backend)
    assert signals == [
        ("started", sender, result.id, TaskResultStatus.RUNNING, None),
        ("finished", sender, result.id, TaskResultStatus.FAILED, ValueError),
    ]


def states(caplog) -> list[str]:
    return [record.getMessage().rpartition("state=")[2] for record in caplog.records if record.name == FRAMEWORK][1:]


def test_a_line_is_logged_for_each_state(in_process_backend, caplog):
    with caplog.at_level(logging.DEBUG, logger=FRAMEWORK):
        in_process_backend.finish(tasks.answer.enqueue())
    assert states(caplog) == ["RUNNING", "SUCCESSFUL"]


def test_a_failure_is_logged_as_an_error_with_its_traceback(in_process_backend, caplog):
    with caplog.at_level(logging.DEBUG, logger=FRAMEWORK):
        failed(in_process_backend, tasks.raise_value_error)
    assert states(caplog) == ["RUNNING", "FAILED"]
    assert caplog.records[-1].levelno == logging.ERROR
    assert "this value is wrong" in caplog.text
