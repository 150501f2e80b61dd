"""`edit_tasks`: queue, priority and time of tasks that wait to run, and of no others."""

from datetime import UTC, datetime

import pytest
from django.utils import timezone

from tasks.models import Intervention, Task
from tests.commands import run
from tests.sessions import session
from tests.tasks import rows

pytestmark = pytest.mark.django_db


def edit(*argv):
    return run("edit_tasks", "--json", *argv)


def test_queue_priority_and_time_are_set_together():
    task = rows.ready()
    outcome = edit(task.pk, "--set-queue", "slow", "--set-priority", -3, "--set-run-after", "2031-01-31T03:00:00+02:00")
    assert (outcome.status, outcome.data) == (0, {"edited": 1, "refused": [], "ids": [task.pk]})
    task.refresh_from_db()
    assert (task.queue_name, task.priority, task.version) == ("slow", -3, 2)
    assert task.run_after == datetime(2031, 1, 31, 1, tzinfo=UTC)


def test_what_is_not_named_stays():
    task = rows.ready(queue_name="mail", priority=7)
    edit(task.pk, "--set-priority", 0)
    edited = Task.objects.get()
    assert (edited.queue_name, edited.priority, edited.run_after) == ("mail", 0, task.run_after)


def test_the_audit_says_what_was_set():
    task = rows.ready()
    edit(task.pk, "--set-queue", "slow", "--set-priority", 5, "--reason", "flood")
    entry = Intervention.objects.get()
    assert (entry.action, entry.target) == ("edit queue_name=slow priority=5", f"task:{task.pk}")
    assert (entry.reason, entry.version_before, entry.version_after) == ("flood", 1, 2)


def test_a_time_without_an_offset_is_in_the_projects_zone(settings):
    settings.TIME_ZONE = "Europe/Istanbul"
    edit(rows.ready().pk, "--set-run-after", "2031-01-31T03:00:00")
    assert Task.objects.get().run_after == datetime(2031, 1, 31, 0, tzinfo=UTC)


@pytest.mark.parametrize("state", [rows.failed, rows.cancelled, rows.completed])
def test_a_finished_task_is_refused(state):
    task = state()
    outcome = edit(task.pk, "--set-priority", 1)
    assert (outcome.status, outcome.data["refused"][0]["reason"]) == (1, "finished")
    assert Task.objects.get().version == task.version


def test_a_task_that_a_worker_holds_is_refused():
    task = rows.processing("w1")
    assert edit(task.pk, "--set-priority", 1).data["refused"][0]["reason"] == "held"
    assert Task.objects.get().version == task.version


def test_a_filter_means_ready_tasks():
    ready = rows.ready(queue_name="a")
    rows.failed(queue_name="a")
    assert edit("--queue", "a", "--set-queue", "b").data == {"edited": 1, "refused": [], "ids": [ready.pk]}


@pytest.mark.parametrize("argv", [("--set-priority", 1), (1,), (), (1, "--set-priority", 101), (1, "--set-queue", "")])
def test_usage_errors(argv):
    assert edit(*argv).status == 2


@pytest.mark.django_db(transaction=True)
def test_workers_are_woken():
    task = rows.ready(run_after="2031-01-01T00:00:00Z")
    with session(autocommit=True) as listener:
        listener.execute("LISTEN rowlock_public")
        edit(task.pk, "--set-run-after", "2026-01-01T00:00:00")
        assert list(listener.notifies(timeout=5, stop_after=1))


def test_a_scheduled_task_is_run_now():
    task = rows.ready(run_after="2031-01-01T00:00:00Z")
    edit(task.pk, "--set-run-after", "now")
    assert Task.objects.ready().get(run_after__lte=timezone.now()) == task
