"""`captured_tasks` and `assert_enqueued`: what a test learns of its code's enqueueing."""

from datetime import timedelta
from functools import partial

import pytest
from django.db import connection, transaction
from django.test import TestCase
from django.utils import timezone

from tasks import testing
from tests.tasks import handlers

HOUR = timedelta(hours=1)


class CapturedTests(TestCase):
    def test_at_once_on_commit_in_bulk_and_from_sql(self):
        handlers.echo.enqueue("before")
        with testing.captured_tasks() as tasks:
            handlers.echo.enqueue("at once")
            transaction.on_commit(partial(handlers.echo.enqueue, "on commit"))
            handlers.echo.enqueue_many([(("in bulk",), {})])
            with connection.cursor() as cursor:
                cursor.execute("""SELECT rowlock_enqueue('other.tasks.run', '["from sql"]', queue => 'mail')""")
            assert tasks == []
        handlers.echo.enqueue("after")
        assert [task.args for task in tasks] == [["at once"], ["in bulk"], ["from sql"], ["on commit"]]
        assert (tasks[2].task_path, tasks[2].queue_name, tasks[2].status) == ("other.tasks.run", "mail", "READY")

    def test_what_ran_in_the_block_is_there_and_a_duplicate_is_not(self):
        once = handlers.nothing.using(unique_key="once")
        once.enqueue(1)
        with testing.captured_tasks() as tasks:
            once.enqueue(2)
            handlers.echo.enqueue(3)
            testing.run_due()
        assert [(task.args, task.status) for task in tasks] == [([3], "COMPLETED")]


@pytest.mark.django_db(transaction=True)
def test_captured_without_a_transaction_of_the_test():
    with testing.captured_tasks() as tasks, transaction.atomic():
        transaction.on_commit(partial(handlers.echo.enqueue, 1))
    assert [task.args for task in tasks] == [[1]]


class AssertEnqueuedTests(TestCase):
    def test_every_value_is_compared(self):
        later = timezone.now() + HOUR
        handlers.by_account.using(priority=3, queue_name="mail", run_after=later, unique_key="u").enqueue("a", [1])
        right = {"args": ("a", (1,)), "kwargs": {}, "queue": "mail", "priority": 3, "ordering_key": "a"}
        right |= {"unique_key": "u", "run_after": later, "count": 1}
        [row] = testing.assert_enqueued(handlers.by_account, **right)
        assert row.args == ["a", [1]]
        testing.assert_enqueued(handlers.by_account, run_after=HOUR)
        wrong = {"args": [], "kwargs": {"a": 1}, "queue": "x", "priority": 4, "ordering_key": "b", "unique_key": "v"}
        wrong |= {"run_after": later + HOUR, "count": 2}
        for name, value in wrong.items():
            with pytest.raises(AssertionError, match=r"by_account.*expected\. Enqueued:"):
                testing.assert_enqueued(handlers.by_account, **{**right, name: value})
        with pytest.raises(AssertionError, match="run_after"):
            testing.assert_enqueued(handlers.by_account, run_after=HOUR + timedelta(seconds=11))

    def test_the_message_shows_what_was_enqueued_instead(self):
        handlers.echo.using(queue_name="mail").enqueue(value="1")
        handlers.add.enqueue(1, 2)
        with pytest.raises(AssertionError) as raised:
            testing.assert_enqueued(handlers.echo, kwargs={"value": 1}, queue="mail")
        assert str(raised.value).splitlines() == [
            "tests.tasks.handlers.echo, kwargs {'value': 1}, queue_name 'mail': 0 enqueued, at least 1 expected. "
            "Enqueued:",
            "  tests.tasks.handlers.echo(value='1') READY, queue_name 'mail' (differs in kwargs)",
            "  tests.tasks.handlers.add(1, 2) READY",
        ]

    def test_none_is_expected_and_none_is_there(self):
        testing.assert_enqueued(handlers.echo, count=0)
        with pytest.raises(AssertionError, match=r"0 enqueued, at least 1 expected\. Enqueued: nothing\."):
            testing.assert_enqueued(handlers.echo)
        handlers.echo.enqueue()
        testing.run_due()
        testing.assert_enqueued(handlers.echo, count=1)
        testing.assert_enqueued(handlers.echo, count=0, among=[])
