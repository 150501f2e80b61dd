"""Results: what a row and its attempts say in the framework's words."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tasks import testing
from tasks.compat import TaskResultDoesNotExist, TaskResultStatus, task_backends
from tasks.exceptions import Abandoned, TimedOut, UnknownTask
from tasks.framework import results
from tasks.models import Attempt, Queue, Task
from tests.tasks import handlers, rows

pytestmark = pytest.mark.django_db


def get(task: Task):
    return task_backends["default"].get_result(str(task.pk))


def attempt(task: Task, number: int, outcome: str, **columns: object) -> Attempt:
    return Attempt.objects.create(task=task, number=number, outcome=outcome, worker_id=f"w{number}", **columns)


@pytest.mark.parametrize(
    ("make", "status"),
    [
        (rows.ready, TaskResultStatus.READY),
        (lambda: rows.processing("w1"), TaskResultStatus.RUNNING),
        (rows.completed, TaskResultStatus.SUCCESSFUL),
        (rows.failed, TaskResultStatus.FAILED),
        (rows.cancelled, TaskResultStatus.FAILED),
    ],
)
def test_each_of_our_states_is_one_of_the_framework_s(make, status):
    assert get(make()).status == status


def test_a_completed_task_gives_its_return_value_and_times():
    now = timezone.now()
    row = rows.completed(return_value={"a": 1}, started_at=now, finished_at=now, finished_by="w1")
    result = get(row)
    assert (result.return_value, result.started_at, result.finished_at) == ({"a": 1}, now, now)
    assert (result.enqueued_at, result.last_attempted_at, result.worker_ids) == (row.created_at, now, ["w1"])


def test_the_task_is_the_declared_one_with_what_the_row_says():
    later = timezone.now() + timedelta(hours=1)
    row = rows.ready(task_path=handlers.fail_once.module_path, priority=4, queue_name="moved", run_after=later)
    task = get(row).task
    assert (task.func, task.max_attempts) == (handlers.fail_once.func, 1)
    assert (task.priority, task.queue_name, task.run_after) == (4, "moved", later)


def test_a_queue_that_the_backend_would_refuse_today_does_not_hide_the_result(settings):
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": ["default"]}}
    assert get(rows.ready(queue_name="moved")).task.queue_name == "moved"


def test_errors_and_workers_of_every_attempt_in_order_without_those_given_back():
    early = timezone.now() - timedelta(minutes=5)
    row = rows.processing("w5", attempt=5)
    attempt(row, 2, "timed_out")
    attempt(row, 1, "failed", exception_class="builtins.KeyError", traceback="Traceback …", started_at=early)
    attempt(row, 3, "released", started_at=early - timedelta(minutes=1))
    attempt(row, 4, "abandoned")
    result = get(row)
    assert [error.exception_class for error in result.errors] == [KeyError, TimedOut, Abandoned]
    assert result.errors[0].traceback == "Traceback …"
    assert result.worker_ids == ["w1", "w2", "w4", "w5"]
    assert (result.started_at, result.last_attempted_at) == (early, row.started_at)


def test_a_retry_that_waits_is_ready_with_the_time_of_its_next_attempt():
    handlers.fail.enqueue()
    [result] = testing.run_due()
    assert result.status == TaskResultStatus.READY
    assert result.task.run_after > timezone.now()
    assert result.errors[0].exception_class is ValueError


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("tasks.models.Queue.DoesNotExist", Queue.DoesNotExist),
        ("builtins.SystemExit", SystemExit),
        ("tasks.exceptions.TimedOut", TimedOut),
    ],
)
def test_an_exception_s_class_is_found_inside_others_too(path, found):
    assert results.AttemptError(exception_class_path=path, traceback="").exception_class is found


@pytest.mark.parametrize("path", ["gone.module.Error", "tasks.models.Gone", "NoDots", ""])
def test_a_class_that_is_gone_is_an_import_error(path):
    with pytest.raises(ImportError, match="names nothing that can be imported"):
        _ = results.AttemptError(exception_class_path=path, traceback="").exception_class


@pytest.mark.parametrize("path", ["subprocess.run", "tasks.models.Queue"])
def test_a_name_that_is_no_exception_is_refused(path):
    with pytest.raises(ValueError, match="does not reference a valid exception"):
        _ = results.AttemptError(exception_class_path=path, traceback="").exception_class


def test_one_query_unless_an_attempt_did_not_succeed():
    ready, completed, failed = rows.ready(), rows.completed(finished_by="w1"), rows.failed()
    for row, statements in ((ready, 1), (completed, 1), (failed, 2)):
        with CaptureQueriesContext(connection) as queries:
            get(row)
        assert len(queries) == statements


@pytest.mark.parametrize(
    "id", ["-1", "1.0", "", "abc", "1\0", "٣", "²", "007", " 1", str(2**63), "9" * 5000, None, True, b"1"]
)
def test_an_id_that_cannot_be_one_is_unknown_and_needs_no_query(id):
    with CaptureQueriesContext(connection) as queries, pytest.raises(TaskResultDoesNotExist):
        task_backends["default"].get_result(id)
    assert len(queries) == 0


@pytest.mark.parametrize("id", ["0", str(2**63 - 1)])
def test_the_smallest_and_the_largest_id_are_merely_unknown(id):
    with pytest.raises(TaskResultDoesNotExist):
        task_backends["default"].get_result(id)


def test_a_function_that_nobody_knows_here_is_named():
    with pytest.raises(UnknownTask, match=r"'gone\.away'"):
        get(rows.ready(task_path="gone.away"))


def test_what_a_running_handler_sees_needs_no_query():
    now = timezone.now()
    with CaptureQueriesContext(connection) as queries:
        result = results.running_result(
            handlers.nothing,
            id=7,
            args=[1],
            kwargs={"a": 2},
            attempt=3,
            worker_id="w1",
            enqueued_at=now,
            started_at=now,
        )
    assert len(queries) == 0
    assert (result.id, result.status, result.attempts, result.worker_ids) == ("7", "RUNNING", 3, ["w1"])
    assert (result.args, result.kwargs, result.started_at) == ([1], {"a": 2}, now)
