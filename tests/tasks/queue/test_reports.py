"""What running tasks tell: progress, checkpoints and log lines, each kept with its attempt."""

import logging
import time

import psycopg
import pytest
from django.db import connection, transaction

from tasks import testing
from tasks.framework import context as told
from tasks.framework.context import AttemptLogHandler, Report, TaskContext, capture_logs
from tasks.models import AttemptLog, Progress, Task
from tasks.queue import reports
from tasks.queue.reports import Reports, checkpoint
from tests.sessions import session
from tests.tasks import handlers, rows

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def captured():
    """The log handler of a worker, on the test's own root logger."""
    root = logging.getLogger()
    level, before = root.level, list(root.handlers)
    levels = [handler.level for handler in before]
    logging.getLogger("shop.detail").setLevel(logging.DEBUG)
    capture_logs()
    yield
    root.setLevel(level)
    root.handlers = before
    for handler, kept in zip(before, levels, strict=True):
        handler.setLevel(kept)


def report(task: Task, *, attempt: int = 1, log_level: int | None = None) -> Report:
    return Report(task.pk, attempt, log_level, str)


def lines_of(task_id: int) -> list[str]:
    return list(AttemptLog.objects.filter(task_id=task_id).order_by("id").values_list("message", flat=True))


def test_the_last_report_is_kept_and_the_next_attempt_finds_the_checkpoint():
    task_id = int(handlers.count_up.enqueue(4).id)
    testing.run_due()
    half = Progress.objects.get(task_id=task_id)
    assert (half.attempt, half.fraction, half.message, half.state) == (1, 0.5, "step 2, ", 2)
    [result] = testing.run_all()
    assert result.return_value == 2, "the second attempt began behind the checkpoint"
    whole = Progress.objects.get(task_id=task_id)
    assert (whole.attempt, whole.fraction, whole.first_fraction, whole.state) == (2, 1.0, 0.75, 4)


def test_each_attempt_keeps_its_lines_and_none_its_secrets():
    task_id = int(handlers.count_up.enqueue(2, token="tr0ub4dor").id)
    testing.run_all()
    found = AttemptLog.objects.filter(task_id=task_id).order_by("id").values_list("number", "level", "message")
    assert list(found) == [
        (1, "WARNING", "step 0 of 2 with [redacted]"),
        (2, "WARNING", "step 1 of 2 with [redacted]"),
    ]
    assert "tr0ub4dor" not in Progress.objects.get(task_id=task_id).message


def test_a_short_task_keeps_no_info_unless_it_declares_so_or_fails():
    short, failed = int(handlers.chatter.enqueue(3).id), int(handlers.chatter_in_detail.enqueue("all of it").id)
    testing.run_due()
    assert lines_of(short) == []
    assert lines_of(failed) == ["all of it"]


def test_a_long_task_shows_its_info_once_it_has_run_for_a_second():
    task = rows.processing("tests")
    reporting, one = Reports("tests"), report(task)
    reporting.begin(one)
    one.log(logging.makeLogRecord({"levelno": logging.INFO, "levelname": "INFO"}), "begun")
    reporting.write(connection)
    assert lines_of(task.pk) == []
    one.started -= told.SHORT_SECONDS
    reporting.end(one, has_failed=False)
    reporting.write(connection)
    assert lines_of(task.pk) == ["begun"]


def test_the_latest_lines_stay():
    task = rows.processing("tests")
    reporting, one = Reports("tests"), report(task, log_level=logging.INFO)
    reporting.begin(one)
    for start in (0, 150, 300):
        for number in range(start, start + 150):
            one.log(logging.makeLogRecord({"levelno": logging.INFO, "levelname": "INFO"}), f"line {number}")
        reporting.written_at = 0.0  # as if a second had passed
        reporting.write(connection)
    assert lines_of(task.pk) == [f"line {number}" for number in range(250, 450)]


def test_a_line_has_two_kilobytes_at_most():
    task = rows.processing("tests")
    reporting, one = Reports("tests"), report(task, log_level=logging.INFO)
    reporting.begin(one)
    one.log(logging.makeLogRecord({"levelno": logging.INFO, "levelname": "INFO"}), "ж" * 5000 + "\0")
    reporting.write(connection)
    [line] = lines_of(task.pk)
    assert 1900 < len(line.encode()) <= told.LONGEST_LINE


def test_a_worker_that_lost_its_task_tells_nothing_more():
    task = rows.processing("another", attempt=2)
    reporting = Reports("tests")
    for attempt in (1, 2):
        one = report(task, attempt=attempt)
        reporting.begin(one)
        TaskContext(task_result=None, own=one).report(0.5, "late")
        one.log(logging.makeLogRecord({"levelno": logging.ERROR, "levelname": "ERROR"}), "late")
    reporting.write(connection)
    assert (Progress.objects.count(), AttemptLog.objects.count()) == (0, 0)


def test_a_handler_hears_that_it_is_cancelled_or_has_lost_its_task():
    going, asked, lost = rows.processing("tests"), rows.processing("tests"), rows.processing("another")
    Task.objects.filter(pk=asked.pk).update(cancel_requested_at=asked.created_at)
    reporting = Reports("tests")
    contexts = {}
    for task in (going, asked, lost):
        one = report(task)
        reporting.begin(one)
        contexts[task.pk] = TaskContext(task_result=None, own=one)
        assert not contexts[task.pk].is_cancelled()
    reporting.write(connection)
    assert [contexts[task.pk].is_cancelled() for task in (going, asked, lost)] == [False, True, True]


def test_it_is_written_once_a_second_and_when_the_task_ends():
    task = rows.processing("tests")
    reporting, one = Reports("tests"), report(task)
    context = TaskContext(task_result=None, own=one)
    reporting.begin(one)
    context.report(0.1)
    reporting.write(connection)
    context.report(0.2)
    assert not reporting.is_due()
    reporting.write(connection)
    assert Progress.objects.get().fraction == 0.1
    reporting.end(one, has_failed=False)
    assert reporting.is_due()
    reporting.write(connection)
    assert Progress.objects.get().fraction == 0.2


@pytest.mark.django_db(transaction=True)
def test_what_could_not_be_written_is_kept_and_rests():
    task = rows.processing("tests")
    reporting, one = Reports("tests"), report(task)
    reporting.begin(one)
    TaskContext(task_result=None, own=one).report(0.3)
    one.log(logging.makeLogRecord({"levelno": logging.ERROR, "levelname": "ERROR"}), "kept")
    reporting.end(one, has_failed=False)
    with session() as other:
        other.execute("BEGIN; LOCK TABLE tasks_progress")
        impatient = psycopg.connect(**own(), options="-c lock_timeout=100")
        with impatient, pytest.raises(psycopg.errors.LockNotAvailable):
            reporting.write(impatient)
    assert not reporting.is_due(), "the endings of tasks go first for a while"
    reporting.rests_until = time.monotonic()
    reporting.write(connection)
    assert (Progress.objects.get().fraction, lines_of(task.pk)) == (0.3, ["kept"])


def own() -> dict:
    return {**connection.get_connection_params(), "cursor_factory": psycopg.Cursor}


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), "half", None])
def test_a_fraction_that_is_none_is_refused(fraction):
    with pytest.raises(ValueError, match="a fraction from 0 to 1"):
        TaskContext(task_result=None, own=report(rows.ready())).report(fraction)


def test_a_checkpoint_that_is_no_json_is_refused():
    with pytest.raises(TypeError, match="checkpoint: Unsupported type"):
        TaskContext(task_result=None, own=report(rows.ready())).checkpoint({1, 2})


def test_what_a_deleted_task_told_goes_with_it():
    task_id = int(handlers.count_up.enqueue(2).id)
    testing.run_due()
    assert checkpoint(connection, task_id) == 1
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("DELETE FROM tasks_task")
    assert (Progress.objects.count(), AttemptLog.objects.count()) == (0, 0)


def test_no_one_hears_lines_beside_handlers():
    AttemptLogHandler().handle(logging.makeLogRecord({"levelno": logging.ERROR, "msg": "beside"}))
    assert reports.Reports("tests").is_due() is False
