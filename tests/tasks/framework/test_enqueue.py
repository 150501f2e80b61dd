"""Enqueueing one task: one statement in the caller's own transaction."""

from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tasks.compat import InvalidTask, Task, TaskResultStatus, task_backends, task_enqueued
from tasks.exceptions import InvalidArguments
from tasks.models import Task as TaskRow
from tests.sessions import session
from tests.tasks import handlers

pytestmark = pytest.mark.django_db


@pytest.fixture
def signals():
    """What `task_enqueued` was sent with."""
    received = []

    def receive(sender, task_result, **kwargs):
        received.append((sender, task_result))

    task_enqueued.connect(receive)
    yield received
    task_enqueued.disconnect(receive)


def test_the_row_says_what_the_task_says():
    later = timezone.now() + timedelta(hours=1)
    result = handlers.add.using(priority=5, queue_name="sums", run_after=later).enqueue(1, second=2)
    row = TaskRow.objects.get(pk=result.id)
    assert (row.task_path, row.queue_name, row.priority) == ("tests.tasks.handlers.add", "sums", 5)
    assert (row.args, row.kwargs, row.run_after, row.ordering_key) == ([1], {"second": 2}, later, None)
    assert (row.status, row.attempt, row.max_attempts, row.version) == ("READY", 0, 5, 1)


def test_one_statement_and_no_other():
    with CaptureQueriesContext(
        connection,
    ) as queries:
        handlers.add.enqueue(1, 2)
    assert len(queries) == 1


def test_the_result_is_what_can_be_read_later():
    result = handlers.add.enqueue(1, second=2)
    assert (result.status, result.args, result.kwargs) == (TaskResultStatus.READY, [1], {"second": 2})
    assert result.enqueued_at is not None
    assert task_backends["default"].get_result(result.id) == result


@pytest.mark.django_db(transaction=True)
def test_nobody_sees_the_task_before_the_caller_commits():
    with session(autocommit=True) as other, transaction.atomic():
        handlers.nothing.enqueue()
        assert other.execute("SELECT count(*) FROM tasks_task").fetchone() == (0,)


@pytest.mark.django_db(transaction=True)
def test_a_rollback_of_the_caller_takes_the_task_with_it():
    with transaction.atomic():
        handlers.nothing.enqueue()
        transaction.set_rollback(True)
    assert not TaskRow.objects.exists()


def test_a_task_enqueued_late_in_a_transaction_is_due_now_and_not_at_its_beginning():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(0.01), now()")
        _, beginning = cursor.fetchone()
    handlers.nothing.enqueue()
    row = TaskRow.objects.get()
    assert row.run_after == row.created_at > beginning


def test_the_signal_is_sent_by_the_class_with_the_result(signals):
    result = handlers.add.enqueue(1, 2)
    assert signals == [(type(task_backends["default"]), result)]


def test_the_setting_says_how_many_attempts_a_task_has_that_does_not_say_it(settings):
    settings.ROWLOCK = {"MAX_ATTEMPTS": 9}
    handlers.nothing.enqueue()
    handlers.fail_once.enqueue()
    assert list(TaskRow.objects.order_by("id").values_list("max_attempts", flat=True)) == [9, 1]


def test_the_key_is_computed_from_the_arguments_of_the_call():
    handlers.by_account.enqueue("anna", 1)
    handlers.by_account.using(ordering_key="fixed").enqueue("bert", 2)
    handlers.by_account.enqueue(None)
    assert list(TaskRow.objects.order_by("id").values_list("ordering_key", flat=True)) == ["anna", "fixed", None]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((17,), "The ordering key must be text, not int"),
        (("",), "The ordering key must not be empty"),
        (("k" * 256,), "The ordering key has 256 characters, at most 255 fit"),
        ((), "cannot be had from these arguments"),
    ],
)
def test_a_key_that_cannot_be_stored_is_refused(args, message):
    with pytest.raises(InvalidArguments, match=message):
        handlers.by_account.enqueue(*args)
    assert not TaskRow.objects.exists()


def test_a_task_that_became_invalid_is_refused_when_it_is_enqueued(settings):
    task = handlers.nothing.using(queue_name="mail")
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": ["default"]}}
    with pytest.raises(InvalidTask, match="Queue 'mail' is not valid"):
        task.enqueue()


def test_a_task_declared_while_another_backend_was_configured_takes_the_defaults():
    plain = Task(func=handlers.undeclared)
    result = plain.enqueue(1)
    assert result.task is plain
    assert task_backends["default"].get_result(result.id).task.func is handlers.undeclared


@pytest.mark.parametrize("year", [1, 9999])
def test_times_at_the_ends_of_the_calendar_are_refused_before_the_database_does(year):
    with pytest.raises(InvalidTask, match="run_after must be a datetime"):
        handlers.nothing.using(run_after=timezone.now().replace(year=year, day=1))
