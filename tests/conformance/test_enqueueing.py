"""Enqueueing: what comes back, what is refused, what is announced."""

import logging
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from django.utils import timezone

from tasks.compat import FRAMEWORK, InvalidTask, TaskResultStatus, task_enqueued
from tests.conformance import tasks


def enqueue(task, *args, **kwargs):
    return task.enqueue(*args, **kwargs)


def aenqueue(task, *args, **kwargs):
    return async_to_sync(task.aenqueue)(*args, **kwargs)


either_way = pytest.mark.parametrize("way", [enqueue, aenqueue])


@either_way
@pytest.mark.parametrize("declared", [tasks.nothing, tasks.nothing_async])
def test_the_result_names_the_task_and_its_arguments(any_backend, way, declared):
    result = way(declared, 1, (2, 3), four={"five": 6})
    assert result.task == declared
    assert (result.args, result.kwargs) == ([1, [2, 3]], {"four": {"five": 6}})
    assert (result.backend, type(result.id)) == ("default", str)
    assert timezone.is_aware(result.enqueued_at)


def test_every_result_has_an_id_of_its_own(any_backend):
    assert len({tasks.nothing.enqueue().id for _ in range(10)}) == 10


@either_way
@pytest.mark.parametrize("value", [object(), timezone.now(), {1, 2}])
def test_what_json_cannot_hold_is_a_type_error(any_backend, way, value):
    for args, kwargs in (([value], {}), ([], {"deep": [value]})):
        with pytest.raises(TypeError, match="Unsupported type"):
            way(tasks.nothing, *args, **kwargs)


@either_way
def test_a_task_is_validated_again_when_it_is_enqueued(any_backend, settings, way):
    declared = tasks.nothing.using(queue_name="mail")
    settings.TASKS = any_backend.settings(QUEUES=["default"])
    with pytest.raises(InvalidTask, match="Queue 'mail' is not valid for backend"):
        way(declared)


def test_the_signal_is_sent_once_by_the_backend_s_class(any_backend):
    heard = []

    def hear(sender, task_result, **kwargs):
        heard.append((sender, task_result.id, task_result.status))

    task_enqueued.connect(hear)
    try:
        result = tasks.nothing.enqueue()
    finally:
        task_enqueued.disconnect(hear)
    assert heard == [(type(any_backend.backend), result.id, TaskResultStatus.READY)]


def test_a_line_is_logged_for_those_who_debug(any_backend, caplog):
    with caplog.at_level(logging.DEBUG, logger=FRAMEWORK):
        result = tasks.nothing.enqueue()
    line = caplog.records[0]
    assert line.levelno == logging.DEBUG
    assert "enqueued" in line.getMessage()
    assert result.id in line.getMessage()


def test_a_deferred_task_waits_for_its_time(deferring_backend):
    later = timezone.now() + timedelta(hours=1)
    result = tasks.nothing.using(run_after=later).enqueue()
    if deferring_backend.run:
        deferring_backend.finish(result)
    assert (result.status, result.task.run_after) == (TaskResultStatus.READY, later)
    assert (result.started_at, result.finished_at, result.last_attempted_at) == (None, None, None)
    assert (result.is_finished, result.attempts, result.errors, result.worker_ids) == (False, 0, [], [])
    with pytest.raises(ValueError, match="Task has not finished yet"):
        _ = result.return_value
