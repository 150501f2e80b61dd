"""`tasks.testing`, as adopters use it: inside a TestCase, whose transaction must survive whatever a task does."""

from datetime import timedelta
from functools import partial

import pytest
from django.db import connection, transaction
from django.test import TestCase
from django.utils import timezone

from tasks import testing
from tasks.compat import TaskResultStatus
from tasks.exceptions import UnknownTask
from tasks.models import Attempt, Queue, Task
from tasks.testing import running
from tests.tasks import handlers


class EnqueuedTests(TestCase):
    def test_what_waits_is_listed_in_the_order_of_enqueueing(self):
        later = timezone.now() + timedelta(hours=1)
        first = handlers.echo.using(run_after=later, priority=7, queue_name="mail").enqueue("one")
        second = handlers.by_account.enqueue("a", 2)
        [one, two] = testing.enqueued()
        assert (one.id, two.id) == (int(first.id), int(second.id))
        assert (one.args, one.kwargs, one.run_after, one.priority, one.queue_name) == (["one"], {}, later, 7, "mail")
        assert (two.task_path, two.ordering_key, two.attempt) == ("tests.tasks.handlers.by_account", "a", 0)

    def test_one_task_s_calls_can_be_asked_for(self):
        handlers.echo.enqueue(1)
        handlers.nothing.enqueue(2)
        assert [call.args for call in testing.enqueued(handlers.nothing)] == [[2]]

    def test_what_ran_is_not_listed(self):
        handlers.echo.enqueue(1)
        testing.run_due()
        assert testing.enqueued() == []


class RunDueTests(TestCase):
    def test_it_runs_in_a_worker_s_order_and_gives_the_results(self):
        handlers.echo.enqueue("second")
        handlers.add_async.using(priority=1).enqueue(1, 2)
        assert [result.return_value for result in testing.run_due()] == [3, "second"]

    def test_what_is_scheduled_stays(self):
        handlers.echo.using(run_after=timezone.now() + timedelta(hours=1)).enqueue()
        assert testing.run_due() == []
        assert len(testing.enqueued()) == 1

    def test_what_a_task_enqueues_runs_too_unless_the_limit_is_reached(self):
        handlers.countdown.enqueue(2)
        assert len(testing.run_due(limit=1)) == 1
        assert [call.args for call in testing.enqueued()] == [[1]]
        assert len(testing.run_due()) == 2

    def test_a_failure_is_recorded_and_its_retry_is_due_later(self):
        handlers.fail.enqueue("no luck")
        [result] = testing.run_due()
        assert result.status == TaskResultStatus.READY
        assert "ValueError: no luck" in result.errors[0].traceback
        assert result.task.run_after > timezone.now()
        assert testing.run_due() == []
        assert Attempt.objects.get().outcome == "failed"

    def test_what_a_handler_wrote_before_it_failed_stays_as_in_a_worker(self):
        handlers.write_then_fail.enqueue()
        testing.run_due()
        assert Queue.objects.filter(name="written").exists()

    def test_a_database_error_in_a_handler_does_not_break_the_test_s_transaction(self):
        Queue.objects.create(name="before")
        handlers.break_the_transaction.enqueue()
        [result] = testing.run_due()
        assert result.errors[0].exception_class.__name__ == "IntegrityError"
        assert Queue.objects.filter(name="before").exists()

    def test_an_atomic_block_that_gave_up_does_not_break_the_test_s_transaction(self):
        handlers.fail_in_joined_atomic.enqueue()
        testing.run_due()
        assert not connection.needs_rollback
        assert not Queue.objects.exists()

    def test_a_paused_queue_does_not_run(self):
        Queue.objects.create(name="default", paused=True)
        handlers.echo.enqueue()
        assert testing.run_due() == []

    def test_a_function_that_nobody_knows_is_an_error_of_the_test(self):
        Task.objects.create(task_path="gone.away")
        with pytest.raises(UnknownTask, match=r"gone\.away"):
            testing.run_due()


class RunAllTests(TestCase):
    def test_time_goes_by_for_what_is_scheduled(self):
        now = timezone.now()
        for hours in (3, 1, 2):
            handlers.echo.using(run_after=now + timedelta(hours=hours)).enqueue(hours)
        assert [result.return_value for result in testing.run_all()] == [1, 2, 3]

    def test_retries_run_until_no_attempt_is_left(self):
        handlers.fail.enqueue()
        results = testing.run_all()
        assert [result.attempts for result in results] == [1, 2, 3, 4, 5]
        assert results[-1].status == TaskResultStatus.FAILED

    def test_a_retry_holds_its_ordering_key(self):
        handlers.fail_first_by_key.enqueue("a", 1)
        handlers.fail_first_by_key.enqueue("a", 2)
        assert [result.args[1] for result in testing.run_all()] == [1, 1, 2, 2]


class EagerTests(TestCase):
    def test_each_task_runs_when_it_is_enqueued_and_later_no_more(self):
        with testing.eager() as results:
            enqueued = handlers.echo.enqueue(1)
            enqueued.refresh()
            assert enqueued.return_value == 1
            handlers.echo.enqueue_many([((2,), {}), ((3,), {})])
        assert [result.return_value for result in results] == [1, 2, 3]
        handlers.echo.enqueue(4)
        assert [call.args for call in testing.enqueued()] == [[4]]

    def test_what_a_handler_enqueues_runs_after_it_however_deep(self):
        with testing.eager() as results:
            handlers.countdown.enqueue(70)
        assert [result.args[0] for result in results] == list(range(70, -1, -1))

    def test_on_commit_waits_for_the_end_of_the_block(self):
        with testing.eager(on_commit=True) as results:
            handlers.countdown.enqueue(1)
            assert results == []
        assert len(results) == 2

    def test_a_call_that_waits_for_the_commit_runs_once(self):
        with testing.eager(on_commit=True) as results:
            with testing.captured_tasks() as tasks:
                transaction.on_commit(partial(handlers.echo.enqueue, 1))
            transaction.on_commit(partial(handlers.echo.enqueue, 2))
        assert [task.args for task in tasks] == [[1]]
        assert [result.return_value for result in results] == [1, 2]


class FailingTests(TestCase):
    def test_an_attempt_fails_as_asked_and_the_next_one_does_not(self):
        handlers.echo.enqueue(1)
        with testing.failing(handlers.echo, ConnectionError("the bank is away"), times=1):
            first, second = testing.run_all()
        assert "ConnectionError: the bank is away" in first.errors[0].traceback
        assert (second.return_value, second.attempts) == (1, 2)

    def test_every_attempt_fails_in_the_block_and_none_of_another_task_or_after_it(self):
        handlers.echo.enqueue(1)
        handlers.add.enqueue(1, 2)
        with testing.failing(handlers.echo, ConnectionError):
            with testing.failing(handlers.echo, ValueError, times=0):
                assert {result.status for result in testing.run_due()} == {TaskResultStatus.SUCCESSFUL}
            handlers.echo.enqueue(1)
            assert testing.run_all()[-1].status == TaskResultStatus.FAILED
        handlers.echo.enqueue(2)
        assert testing.run_due()[0].return_value == 2


@pytest.mark.django_db(transaction=True)
def test_on_commit_runs_at_the_commit_where_there_is_one():
    with testing.eager(on_commit=True) as results:
        with transaction.atomic():
            handlers.echo.enqueue(1)
            assert results == []
        assert [result.return_value for result in results] == [1]


@pytest.mark.django_db(transaction=True)
def test_without_a_transaction_of_the_test_every_step_is_committed():
    handlers.write_then_fail.enqueue()
    testing.run_due()
    assert not connection.in_atomic_block
    assert Queue.objects.filter(name="written").exists()


@pytest.mark.django_db
def test_a_task_without_end_is_reported(monkeypatch):
    monkeypatch.setattr(running, "ENDLESS", 10)
    handlers.countdown.enqueue(10**9)
    with pytest.raises(RuntimeError, match="10 tasks ran and more are due: does one enqueue itself"):
        testing.run_due()


@pytest.mark.django_db(transaction=True)
def test_a_handler_that_leaves_its_transaction_open_fails_as_in_a_worker():
    handlers.leave_a_transaction_open.enqueue()
    [result] = testing.run_due()
    assert "transaction open" in result.errors[0].traceback
    assert not Queue.objects.exists()
