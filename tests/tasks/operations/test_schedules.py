"""What operators do with schedules: add, edit, pause, run now, back to what code declares, delete."""

from datetime import timedelta

import pytest
from django.db import connection

from tasks.exceptions import (
    InternalTask,
    InvalidArguments,
    InvalidSchedule,
    ScheduleRefused,
    StaleVersion,
    UnknownSchedule,
    UnknownTask,
)
from tasks.models import Intervention, Schedule, Task, Tick
from tasks.operations import schedules
from tasks.support.audit import Who
from tasks.support.reading import Unreadable
from tests.tasks import handlers

pytestmark = pytest.mark.django_db
WHO = Who("anna", "page")
NOTHING = handlers.nothing.module_path


def add(name="nightly", path=NOTHING, **settings) -> Schedule:
    return schedules.add(name, path, WHO, {"cron": "0 3 * * *", **settings})


def actions() -> list[str]:
    return list(Intervention.objects.order_by("id").values_list("action", flat=True))


def test_a_schedule_that_is_added_has_its_next_time_and_an_audit_entry():
    row = add(timezone="Europe/Berlin", args=[1], queue_name="reports", priority=5)
    assert (row.next_at.astimezone(row.recurrence.zone).hour, row.version, row.edition) == (3, 1, 1)
    assert (row.args, row.queue_name, row.priority, row.missed, row.overlap) == ([1], "reports", 5, "skip", "skip")
    assert Intervention.objects.get().target == "schedule:nightly"
    assert actions() == [f"add 0 3 * * * (Europe/Berlin) {NOTHING}"]


def test_an_interval_begins_one_interval_from_now():
    row = add(cron=None, every="10m")
    assert (row.every_seconds, row.next_at - schedules.now()) == (
        600,
        pytest.approx(timedelta(minutes=10), abs=timedelta(seconds=30)),
    )


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"cron": "* * * *"}, InvalidSchedule, "not a cron expression of five fields"),
        ({"cron": "61 * * * *"}, InvalidSchedule, r"'61 \* \* \* \*' is not a cron expression \(Bad minute\)"),
        ({"cron": "0 0 30 2 *"}, InvalidSchedule, "day"),
        ({"every": "10m"}, InvalidSchedule, "either a cron expression or an interval"),
        ({"cron": None}, InvalidSchedule, "either a cron expression or an interval"),
        ({"cron": None, "every": 0}, InvalidSchedule, "interval of 1 s to 3650 d"),
        ({"cron": None, "every": "soon"}, InvalidSchedule, "not a duration"),
        ({"cron": None, "every": 1.5}, InvalidSchedule, "whole seconds"),
        ({"timezone": "Europe/Berln"}, InvalidSchedule, "not a known time zone: did you mean Europe/Berlin"),
        ({"timezone": "Europe"}, InvalidSchedule, "not a known time zone"),
        ({"missed": "some"}, InvalidSchedule, "missed is 'some': write one of skip, once, all"),
        ({"overlap": "some"}, InvalidSchedule, "overlap is 'some': write one of skip, queue, allow"),
        ({"path": "tests.tasks.handlers.nothin"}, UnknownTask, "Did you mean tests.tasks.handlers.nothing"),
        ({"path": "tasks.tasks.run_bulk_action"}, InternalTask, "page of its own"),
        ({"path": "tests.tasks.handlers.add", "args": [1]}, InvalidArguments, "missing a required argument"),
        ({"args": [float("nan")]}, InvalidArguments, "not a number in JSON"),
        ({"queue_name": "demo-mail"}, Unreadable, "queue of the demo"),
        ({"priority": 101}, InvalidArguments, "priority must be"),
        ({"name": "a\nb"}, Unreadable, "control character"),
        ({"name": "x" * 201}, Unreadable, "at most 200 fit"),
    ],
    ids=str,
)
def test_what_cannot_be_a_schedule_is_refused_with_the_reason(settings, error, text):
    with pytest.raises(error, match=text):
        add(**settings)
    assert not Schedule.objects.exists()


def test_a_name_that_is_taken_is_refused():
    add()
    with pytest.raises(ScheduleRefused, match="nightly is taken"):
        add()
    assert Schedule.objects.count() == 1


def test_an_edit_changes_what_it_names_and_computes_the_next_time():
    before = add(args=[1])
    assert schedules.edit("nightly", WHO, {"every": "2h", "overlap": "allow"}, edition=1)
    row = Schedule.objects.get()
    assert (row.cron, row.every_seconds, row.overlap, row.args) == (None, 7200, "allow", [1])
    assert (row.edition, row.version > before.version, row.next_at != before.next_at) == (2, True, True)
    assert actions()[-1] == "edit cron=None every_seconds=7200 overlap=allow"
    assert not schedules.edit("nightly", WHO, {"every": 7200})


def test_an_edit_on_what_has_changed_is_refused_but_a_tick_is_no_change():
    add()
    Schedule.objects.update(last_task_id=7)
    assert schedules.pause("nightly", WHO, edition=1)
    for act in (schedules.pause, schedules.resume, schedules.run_now, schedules.delete, schedules.revert):
        with pytest.raises((StaleVersion, ScheduleRefused)):
            act("nightly", WHO, edition=1)
    with pytest.raises(StaleVersion, match="changed since you looked"):
        schedules.edit("nightly", WHO, {"missed": "all"}, edition=1)


def test_an_end_before_the_next_time_ends_it_and_a_later_one_lets_it_go_on():
    row = add()
    schedules.edit("nightly", WHO, {"ends_at": row.next_at - timedelta(seconds=1)})
    ended = Schedule.objects.get()
    assert (ended.next_at, ended.ended_at is None) == (None, False)
    schedules.edit("nightly", WHO, {"ends_at": None})
    assert (Schedule.objects.get().next_at, Schedule.objects.get().ended_at) == (row.next_at, None)


def test_pause_and_resume_leave_the_next_time():
    row = add()
    assert [schedules.pause("nightly", WHO), schedules.pause("nightly", WHO)] == [True, False]
    paused = Schedule.objects.get()
    assert (paused.paused_by, paused.paused_at is None, paused.next_at) == ("anna", False, row.next_at)
    assert [schedules.resume("nightly", WHO), schedules.resume("nightly", WHO)] == [True, False]
    assert actions()[1:] == ["pause", "resume"]


def test_run_now_enqueues_its_task_and_leaves_its_next_time():
    row = add(args=[1], kwargs={"a": 2}, queue_name="reports")
    task_id = schedules.run_now("nightly", WHO, reason="the report is wanted now")
    task, now = Task.objects.get(), Schedule.objects.get()
    assert (task.pk, task.args, task.kwargs, task.queue_name) == (task_id, [1], {"a": 2}, "reports")
    assert (now.next_at, now.last_task_id, now.last_outcome) == (row.next_at, task_id, "manual")
    assert (Tick.objects.get().task_id, Tick.objects.get().outcome) == (task_id, "manual")
    assert actions()[-1] == f"run task_id={task_id}"


def test_an_override_is_marked_until_it_goes_back():
    declared = {"cron": "0 1 * * *", "every_seconds": None, "timezone": "UTC", "missed": "skip", "overlap": "skip"}
    row = Schedule.objects.create(name=NOTHING, task_path=NOTHING, declared=declared, **declared)
    row.refresh_from_db()
    assert row.overridden == []
    schedules.edit(NOTHING, WHO, {"every": 60, "missed": "once"})
    assert Schedule.objects.get().overridden == ["cron", "every_seconds", "missed"]
    assert schedules.revert(NOTHING, WHO)
    assert (Schedule.objects.get().overridden, actions()[-1]) == (
        [],
        "back to declared cron=0 1 * * * every_seconds=None missed=skip",
    )
    with pytest.raises(ScheduleRefused, match="declared in code"):
        schedules.delete(NOTHING, WHO)


def test_only_a_declared_schedule_goes_back():
    add()
    with pytest.raises(ScheduleRefused, match="no code declares anything"):
        schedules.revert("nightly", WHO)


def test_a_deleted_schedule_leaves_its_ticks():
    add()
    schedules.run_now("nightly", WHO)
    schedules.delete("nightly", WHO)
    assert (Schedule.objects.count(), Tick.objects.count()) == (0, 1)
    with pytest.raises(UnknownSchedule, match="none at all"):
        schedules.find("nightly")


def test_a_dry_run_changes_nothing():
    add("dry")
    schedules.add("other", NOTHING, WHO, {"every": 60}, dry_run=True)
    schedules.run_now("dry", WHO, dry_run=True)
    schedules.edit("dry", WHO, {"missed": "all"}, dry_run=True)
    assert (Schedule.objects.get().missed, Task.objects.count(), len(actions())) == ("skip", 0, 1)


def test_upkeep_is_off_until_somebody_switches_it_on():
    assert {"prune-tasks", "prune-history"} <= {offer.name for offer in schedules.offers()}
    row = schedules.switch_on_maintenance("prune-tasks", WHO)
    assert (row.task_path, row.kwargs, row.paused) == ("tasks.tasks.prune_tasks", {"older_than": "30d"}, False)
    assert "prune-tasks" not in {offer.name for offer in schedules.offers()}
    schedules.pause("prune-tasks", WHO)
    assert not schedules.switch_on_maintenance("prune-tasks", WHO).paused
    with pytest.raises(UnknownSchedule, match="no upkeep called"):
        schedules.switch_on_maintenance("prune", WHO)


@pytest.mark.parametrize(
    ("columns", "constraint"),
    [
        ("cron = NULL", "cron_or_every"),
        ("every_seconds = 60", "cron_or_every"),
        ("cron = NULL, every_seconds = 0", "every_in_range"),
        ("missed = 'some'", "missed_known"),
        ("overlap = 'some'", "overlap_known"),
        ("last_outcome = 'some'", "outcome_known"),
        ("last_outcome = 'skipped'", "held_iff_skipped"),
        ("held_by_task_id = 1", "held_iff_skipped"),
        ("priority = 101", "priority_in_range"),
        ("ends_at = next_at; UPDATE tasks_schedule SET next_at = next_at + interval '1 s'", "next_before_end"),
        ("args = '{}'", "argument_shapes"),
        ("kwargs = '[]'", "argument_shapes"),
        ("declared = '[]'", "argument_shapes"),
        ("next_at = '-infinity'", "times_readable"),
        ("cron = E'a\\nb'", "names_readable"),
        ("queue_name = ''", "names_readable"),
    ],
)
def test_what_a_row_may_not_be(columns, constraint):
    add()
    with pytest.raises(Exception, match=f"tasks_schedule_{constraint}"), connection.cursor() as cursor:
        cursor.execute(f"UPDATE tasks_schedule SET {columns}")


@pytest.mark.parametrize(
    ("columns", "constraint"),
    [
        ("'some', 1, NULL, 1", "outcome_known"),
        ("'enqueued', NULL, NULL, 1", "task_iff_enqueued"),
        ("'missed', 1, NULL, 1", "task_iff_enqueued"),
        ("'skipped', NULL, NULL, 1", "held_iff_skipped"),
        ("'missed', NULL, 1, 1", "held_iff_skipped"),
        ("'missed', NULL, NULL, 0", "stands_for_some"),
    ],
)
def test_what_a_tick_may_not_be(columns, constraint):
    with pytest.raises(Exception, match=f"tasks_tick_{constraint}"), connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO tasks_tick (schedule_name, at, outcome, task_id, held_by_task_id, times) "
            f"VALUES ('a', now(), {columns})"
        )


def test_raw_sql_that_changes_the_times_clears_the_next_one():
    add()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE tasks_schedule SET cron = '*/5 * * * *'")
        assert Schedule.objects.get().next_at is None
        cursor.execute("UPDATE tasks_schedule SET paused = true, next_at = statement_timestamp()")
        cursor.execute("UPDATE tasks_schedule SET cron = '0 * * * *', next_at = statement_timestamp() + interval '1 h'")
    row = Schedule.objects.get()
    assert (row.next_at is None, row.paused_at is None, row.version, row.edition) == (False, False, 4, 4)
