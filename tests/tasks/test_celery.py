"""`shared_task` for code that was written for Celery: what works, and what is refused by name."""

from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from tasks import testing
from tasks.compat import InvalidTask
from tasks.contrib.celery import INSTEAD, shared_task
from tasks.framework import declaration
from tasks.models import Task

pytestmark = pytest.mark.django_db
HERE = "tests.tasks.test_celery"


@shared_task
def add(first: int, second: int = 0) -> int:
    """The sum."""
    return first + second


@shared_task(name="shop.tasks.total", queue="sums", priority=3)
def add_elsewhere(first: int, second: int = 0) -> int:
    return first + second


@shared_task(autoretry_for=(OSError,), max_retries=2, retry_backoff=10, retry_backoff_max=15, retry_jitter=False)
def fail(kind: str) -> None:
    raise {"timeout": TimeoutError, "value": ValueError}[kind]


@shared_task(autoretry_for=(Exception,), retry_backoff=True)
def fail_with_jitter() -> None:
    raise ValueError


@shared_task(autoretry_for=(Exception,))
def fail_without_backoff() -> None:
    raise ValueError


@shared_task(max_retries=5)
def fail_once() -> None:
    raise ValueError


def seconds_until(moment):
    return (moment - timezone.now()).total_seconds()


class TestDelay:
    def test_enqueues_what_a_worker_runs(self):
        result = add.delay(1, second=2)
        testing.run_due()
        result.refresh()
        assert result.return_value == 3
        assert Task.objects.get().task_path == add.name == f"{HERE}.add"

    def test_a_name_is_the_path_of_the_row_and_of_the_registry(self):
        add_elsewhere.delay(1)
        row = Task.objects.get()
        assert (row.task_path, row.queue_name, row.priority) == ("shop.tasks.total", "sums", 3)
        assert declaration.get("shop.tasks.total") is add_elsewhere.task
        [result] = testing.run_due()
        assert result.return_value == 1

    def test_a_call_runs_the_function_at_once(self):
        assert (add(1, second=2), add_elsewhere(1)) == (3, 1)
        assert (add.__name__, add.__doc__, Task.objects.count()) == ("add", "The sum.", 0)


class TestApplyAsync:
    def test_takes_arguments_queue_and_priority(self):
        add.apply_async((1,), {"second": 2}, queue="sums", priority=9)
        row = Task.objects.get()
        assert (row.args, row.kwargs, row.queue_name, row.priority) == ([1], {"second": 2}, "sums", 9)

    def test_a_higher_priority_goes_first(self):
        late, first = add.apply_async((1,), priority=0), add.apply_async((2,), priority=9)
        assert [result.id for result in testing.run_due()] == [first.id, late.id]

    def test_a_countdown_is_in_seconds(self):
        add.apply_async((1,), countdown=90)
        assert seconds_until(Task.objects.get().run_after) == pytest.approx(90, abs=30)

    def test_an_eta_is_an_aware_datetime(self):
        eta = timezone.now() + timedelta(hours=1)
        add.apply_async((1,), eta=eta)
        assert Task.objects.get().run_after == eta
        with pytest.raises(InvalidTask, match="aware"):
            add.apply_async((1,), eta=datetime(2030, 1, 1))  # noqa: DTZ001
        with pytest.raises(TypeError, match="not both"):
            add.apply_async((1,), eta=eta, countdown=1)


class TestRetries:
    def test_an_exception_of_the_list_is_tried_again_after_the_backoff(self):
        fail.delay("timeout")
        waits = []
        for _ in range(3):
            Task.objects.update(run_after=timezone.now())
            testing.run_due()
            row = Task.objects.get()
            waits.append(round(seconds_until(row.run_after)) if row.status == "READY" else row.status)
        assert waits == [pytest.approx(10, abs=5), pytest.approx(15, abs=5), "FAILED"]

    def test_any_other_fails_it_at_once(self):
        fail.delay("value")
        testing.run_due()
        row = Task.objects.get()
        assert (row.status, row.attempt, row.max_attempts) == ("FAILED", 1, 3)
        assert row.finished_at is not None

    def test_jitter_keeps_within_the_backoff(self):
        waits = [fail_with_jitter.task.backoff(4) for _ in range(200)]
        assert 0 <= min(waits) < 2 < 6 < max(waits) <= 8

    def test_without_a_backoff_it_waits_three_minutes(self):
        assert [fail_without_backoff.task.backoff(attempt) for attempt in (1, 3)] == [180, 180]

    def test_without_a_list_there_is_one_attempt(self):
        fail_once.delay()
        testing.run_due()
        row = Task.objects.get()
        assert (row.status, row.attempt, row.max_attempts) == ("FAILED", 1, 1)


class TestRefusals:
    @pytest.mark.parametrize("option", ["bind", "acks_late", "base", "rate_limit", "whatever"])
    def test_an_option_of_the_decorator(self, option):
        with pytest.raises(TypeError, match=f"does not support '{option}': .*(use|leave|call|declare|give)"):
            shared_task(**{option: True})(fail_once._function)

    @pytest.mark.parametrize("option", ["expires", "task_id", "link", "retry", "whatever"])
    def test_an_option_of_the_call(self, option):
        with pytest.raises(TypeError, match=f"does not support '{option}': "):
            add.apply_async((1,), **{option: 1})
        assert not Task.objects.exists()

    @pytest.mark.parametrize("method", ["s", "si", "retry", "delay_on_commit", "AsyncResult", "chunks"])
    def test_a_method(self, method):
        with pytest.raises(AttributeError, match=INSTEAD[method].partition("(")[0]):
            getattr(add, method)
        assert not hasattr(add, "anything")

    def test_a_coroutine_a_plain_name_and_no_end(self):
        async def coroutine(): ...

        for function, options in ((coroutine, {}), (add._function, {"name": "add"}), (add, {"max_retries": None})):
            with pytest.raises(TypeError, match="shared_task"):
                shared_task(**options)(function)


@pytest.mark.parametrize("value", [ValueError, [ValueError], (int,), ("ValueError",)])
def test_retry_for_is_a_tuple_of_exceptions(value):
    with pytest.raises(InvalidTask, match="retry_for"):
        declaration.PostgresTask(func=fail_once._function, retry_for=value)
