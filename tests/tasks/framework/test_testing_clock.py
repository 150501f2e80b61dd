"""`testing.advance`: time goes by for tasks, retries, schedules and rates, inside a TestCase."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import TestCase
from django.utils import timezone

from tasks import task, testing
from tasks.framework import declaration
from tasks.framework.declaration import PostgresTask
from tasks.models import Schedule, Task, Tick
from tests.tasks import handlers

PATH = handlers.nothing.module_path


@task(rate_limit="24/d")
def one_an_hour(number: int) -> int:
    return number


def hours_from_now(hours: float) -> datetime:
    return timezone.now() + timedelta(hours=hours)


class TaskTests(TestCase):
    def test_what_becomes_due_runs_in_the_order_of_its_times_and_the_rest_comes_nearer(self):
        for hours in (3, 1, 2, 5):
            handlers.echo.using(run_after=hours_from_now(hours)).enqueue(hours)
        assert [result.return_value for result in testing.advance(hours=3)] == [1, 2, 3]
        [row] = testing.enqueued()
        assert abs(row.run_after - hours_from_now(2)) < timedelta(minutes=1)
        assert row.run_after - row.created_at > timedelta(hours=4.9)
        assert testing.advance(minutes=110) == []
        assert [result.return_value for result in testing.advance(timedelta(minutes=10))] == [5]

    def test_what_waits_already_keeps_its_place(self):
        handlers.echo.enqueue("first")
        handlers.echo.using(run_after=hours_from_now(1)).enqueue("second")
        testing.advance(hours=2, limit=0)
        assert [result.return_value for result in testing.run_due()] == ["first"]
        handlers.echo.enqueue("third")
        assert [result.return_value for result in testing.advance(hours=2)] == ["third", "second"]

    def test_retries_come_at_their_times(self):
        handlers.fail.enqueue()
        assert len(testing.advance(seconds=0)) == 1
        assert len(testing.advance(days=1)) == 4

    def test_a_rate_gives_its_starts(self):
        one_an_hour.enqueue_many([((number,), {}) for number in range(10)])
        assert len(testing.advance(seconds=0)) == 1
        assert len(testing.advance(hours=4.5)) == 4
        assert len(testing.advance(hours=10)) == 5

    def test_time_does_not_go_back_and_ends(self):
        with pytest.raises(ValueError, match="only goes forward"):
            testing.advance(hours=-1)
        handlers.countdown.enqueue(5)
        assert len(testing.advance(hours=1, limit=2)) == 2


def add(**columns: Any) -> Schedule:
    return Schedule.objects.create(name="nightly", task_path=PATH, **columns)


def test_names_of_units_are_those_of_timedelta():
    with pytest.raises(TypeError):
        testing.advance(fortnights=1)


class ScheduleTests(TestCase):
    def test_an_interval_ticks_at_each_of_its_times(self):
        add(every_seconds=3600)
        assert len(testing.advance(minutes=30)) == 0
        assert len(testing.advance(minutes=60)) == 1
        assert len(testing.advance(hours=5)) == 5

    def test_a_cron_expression_follows_the_calendar_however_small_the_steps(self):
        now = timezone.now()
        at = now.replace(hour=(now.hour + 7) % 24, minute=30)
        add(cron=f"30 {at.hour} * * *")
        runs = [len(testing.advance(hours=3)) for _ in range(24)]
        assert sum(runs) == 3
        times = list(Tick.objects.order_by("at").values_list("at", flat=True))
        assert [(each.hour, each.minute, each.second) for each in times] == [(at.hour, 30, 0)] * 3
        assert times[2] - times[0] == timedelta(days=2)

    def test_its_task_can_fail_and_ends_before_the_next_tick(self):
        Schedule.objects.create(name="failing", task_path=handlers.fail_once.module_path, every_seconds=3600)
        assert len(testing.advance(hours=10.5)) == 10
        assert set(Tick.objects.values_list("outcome", flat=True)) == {"enqueued"}

    def test_paused_and_ended_ones_do_not_tick(self):
        add(every_seconds=3600, paused=True, paused_at=timezone.now())
        Schedule.objects.create(name="ends", task_path=PATH, every_seconds=3600, ends_at=hours_from_now(2.5))
        assert len(testing.advance(hours=10)) == 2
        assert Schedule.objects.get(name="ends").ended_at


@pytest.fixture
def scheduled(monkeypatch: pytest.MonkeyPatch) -> PostgresTask:
    """A task whose code declares a schedule, until the end of the test."""
    path = f"{handlers.__name__}.undeclared"
    others = {name: known for name, known in declaration._registered.items() if name != path}
    monkeypatch.setattr(declaration, "_registered", others)
    return task(every="1h")(handlers.undeclared)


@pytest.mark.django_db
def test_what_code_declares_ticks_without_a_worker(scheduled):
    assert [result.task.module_path for result in testing.advance(hours=2.5)] == [scheduled.module_path] * 2


@pytest.mark.django_db(transaction=True)
def test_without_a_transaction_of_the_test():
    add(cron=f"{(timezone.now().minute + 30) % 60} * * * *", timezone="Europe/Berlin")
    assert len(testing.advance(hours=24)) == 24
    assert not Task.objects.ready().exists()
    assert Schedule.objects.get().next_at > datetime.now(UTC)
