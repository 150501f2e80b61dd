"""Schedules, commands and named locks under "Needs attention"."""

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from dashboard.attention import schedule
from tasks.models import CommandRun, ExpectedCommand, Lock, Schedule
from tests.dashboard.attention.test_attention import ago, lines
from tests.tasks import rows

pytestmark = pytest.mark.django_db(transaction=True)


def scheduled(name: str, **columns: object) -> None:
    Schedule.objects.create(name=name, task_path=rows.NOTHING, cron="0 3 * * *", **columns)


def test_schedules_that_nobody_ticks_are_late_and_those_without_code_are_broken_off():
    scheduled("in time", next_at=ago(seconds=5))
    scheduled("paused", next_at=ago(days=1), paused=True)
    assert not lines().keys() & {"schedules:late", "schedules:broken"}
    scheduled("late", next_at=ago(minutes=5)), scheduled("later", next_at=ago(hours=5))
    scheduled("gone", next_at=ago(days=1), paused=True, problem="Its code no longer declares this schedule.")
    found = lines()
    late, broken = found["schedules:late"], found["schedules:broken"]
    assert (late.text, late.size) == ("2 schedules are late, later for longest.", 2)
    assert (late.why, late.step.command) == ("Workers tick, and none is alive.", "python manage.py run_worker")
    assert (broken.text, broken.size) == ("The schedule gone is broken off.", 1)
    assert late.step.url == "/admin/ops/schedule/?state=late"
    with rows.living_worker():
        assert "none knows its function" in lines()["schedules:late"].why


def test_stopped_schedules_are_found_by_indexes():
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO tasks_schedule (name, task_path, cron, next_at) "
            "SELECT 'job ' || number, 'a', '* * * * *', now() + interval '1 h' FROM generate_series(1, 5000) AS number"
        )
        cursor.execute("ANALYZE tasks_schedule")
        cursor.execute(f"EXPLAIN {schedule.STOPPED}", {"grace": timedelta(seconds=60), "most": schedule.MOST})
        plan = "".join(line for (line,) in cursor.fetchall())
    assert all(index in plan for index in ("tasks_schedule_due", "tasks_schedule_broken"))


class TestSchedule:
    def test_an_overdue_command_counts_its_missing_runs(self):
        ExpectedCommand.objects.create(name="report", every=timedelta(hours=1), since=ago(hours=3, minutes=30))
        line = lines()["overdue:report"]
        assert line.size == 3
        assert line.since is not None

    @pytest.mark.parametrize(("outcome", "is_bad"), [("failed", True), ("succeeded", False), ("skipped", False)])
    def test_the_latest_run_that_says_something_decides(self, outcome, is_bad):
        run = {"name": "report", "argv": ["report"], "finished_at": timezone.now()}
        CommandRun.objects.create(**run, outcome="succeeded", exit_status=0)
        CommandRun.objects.create(**run, outcome=outcome, exit_status=1)
        CommandRun.objects.create(**run, outcome="skipped", exit_status=75)
        assert list(lines()) == (["command-failed:report"] if is_bad else [])

    @pytest.mark.parametrize(("minutes", "is_over"), [(-1, True), (1, False)])
    def test_a_lock_past_its_time(self, minutes, is_over):
        at = timezone.now()
        Lock.objects.create(
            name="report", owner="o", fence=7, hostname="db1", pid=9, acquired_at=ago(hours=1), renewed_at=ago(hours=1),
            expires_at=at + timedelta(minutes=minutes),
        )  # fmt: skip
        assert list(lines()) == (["lock:report:7"] if is_over else [])
