"""Ticked tasks moved to another queue, priority or time, into quarantine and back, or run again one by one."""

import pytest

from tasks.models import Intervention, Queue, Task
from tests.dashboard.task_pages.test_admin_actions import LIST, confirm, press, state
from tests.people import client_of
from tests.tasks import rows

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator():
    return client_of("Operators")


def test_ticked_tasks_are_moved(operator):
    tasks = [rows.ready(), rows.ready()]
    page = press(operator, "edit", *tasks)
    assert "It goes on waiting; empty fields change nothing." in page.text
    fields = {"queue_name": "slow", "priority": "7", "run_after": "2031-01-31T03:00:00+02:00"}
    assert "Move: done for" in confirm(operator, "edit", *tasks, **fields).text
    moved = Task.objects.first()
    assert (moved.queue_name, moved.priority, moved.run_after.isoformat()) == ("slow", 7, "2031-01-31T01:00:00+00:00")
    assert Intervention.objects.filter(action__startswith="edit queue_name=slow priority=7").count() == 2


def test_the_command_to_move_them_is_offered_once_it_changes_something(operator):
    first, second, third = rows.ready(), rows.ready(), rows.ready(priority=9)
    alike = f"python manage.py edit_tasks {first.pk} {second.pk} --set-priority 0"
    assert alike in press(operator, "edit", first, second).text
    assert "edit_tasks" not in press(operator, "edit", first, third).text


def test_what_to_move_to_is_asked_for_and_checked(operator):
    task = rows.ready()
    assert "What is to change?" in press(operator, "edit", task, confirmed="1").text
    page = press(operator, "edit", task, confirmed="1", priority="high")
    assert page.status_code == 400
    assert "is not a priority" in page.text
    assert 'value="high"' in page.text
    assert state(task) == ("READY", 1)


def test_ticked_tasks_go_into_quarantine_and_back(operator):
    task = rows.failed(queue_name="mail")
    press(operator, "quarantine", task, confirmed="1", reason="sends twice")
    task.refresh_from_db()
    assert (task.queue_name, task.status) == ("quarantine", "READY")
    assert Queue.objects.get(name="quarantine").paused
    assert 'data-action="put_back"' in operator.get(f"{LIST}{task.pk}/").text
    press(operator, "put_back", task, confirmed="1")
    task.refresh_from_db()
    assert task.queue_name == "mail"


def test_ticked_tasks_are_run_again_one_by_one(operator):
    tasks = [rows.failed() for _ in range(4)]
    press(operator, "requeue", *tasks, confirmed="1", spread_minutes="2")
    due = list(Task.objects.order_by("id").values_list("run_after", flat=True))
    assert [round((at - due[0]).total_seconds()) for at in due] == [0, 30, 60, 90]
