"""Backends that keep their results give them back, to anybody who has the id."""

import pytest
from asgiref.sync import async_to_sync

from tasks.compat import TaskResultDoesNotExist, TaskResultMismatch, TaskResultStatus
from tests.conformance import tasks

MALFORMED = [
    "",
    "123",
    "no such id",
    "0",
    "-1",
    "1.5",
    "9" * 400,
    "\0",
    "٣",
    "²",
    "00000000-0000-0000-0000-000000000000",
]


@pytest.fixture
def result(keeping_backend):
    return tasks.answer.enqueue()


def test_the_result_is_found_by_its_id(keeping_backend, result):
    assert keeping_backend.backend.get_result(result.id) == result
    assert async_to_sync(keeping_backend.backend.aget_result)(result.id) == result


def test_the_task_finds_its_own_results(keeping_backend, result):
    assert tasks.answer.get_result(result.id) == async_to_sync(tasks.answer.aget_result)(result.id) == result


def test_another_task_does_not_find_them(keeping_backend, result):
    with pytest.raises(TaskResultMismatch, match="Task does not match"):
        tasks.nothing.get_result(result.id)
    with pytest.raises(TaskResultMismatch, match="Task does not match"):
        async_to_sync(tasks.nothing.aget_result)(result.id)


@pytest.mark.parametrize("id", MALFORMED)
def test_unknown_and_malformed_ids_are_the_same(keeping_backend, id):
    with pytest.raises(TaskResultDoesNotExist):
        keeping_backend.backend.get_result(id)
    with pytest.raises(TaskResultDoesNotExist):
        async_to_sync(keeping_backend.backend.aget_result)(id)


@pytest.mark.parametrize("refresh", [lambda result: result.refresh(), lambda result: async_to_sync(result.arefresh)()])
def test_a_result_is_as_it_was_until_it_is_refreshed(keeping_backend, result, refresh):
    keeping_backend.run()
    assert (result.status, result.finished_at) == (TaskResultStatus.READY, None)
    refresh(result)
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, 42)


def test_priorities_decide_what_runs_first(keeping_backend):
    results = [tasks.answer.using(priority=priority).enqueue() for priority in (-5, 5, 0)]
    low, high, middle = (keeping_backend.finish(result).finished_at for result in results)
    assert high < middle < low
