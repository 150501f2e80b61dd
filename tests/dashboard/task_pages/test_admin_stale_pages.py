"""A page on which somebody presses a button while the task has moved on: nothing is done, and what changed is told."""

from datetime import timedelta

import pytest
from django.utils import timezone

from tasks.models import SubmittedForm, Task
from tests.dashboard.task_pages.test_admin_actions import DO, confirm, press, seen, state
from tests.html import flat, hidden
from tests.people import client_of
from tests.tasks import rows

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator():
    return client_of("Operators")


@pytest.mark.parametrize("fields", [{}, {"confirmed": "1", "reason": "r"}], ids=["preview", "confirmed"])
@pytest.mark.parametrize("action", ["requeue", "cancel", "recover"])
def test_a_stale_page_is_answered_with_409_and_what_changed(operator, action, fields):
    task = rows.failed()
    old = seen(task)
    Task.objects.filter(pk=task.pk).update(priority=9)
    page = operator.post(f"{DO}{action}/", {"seen": old, **fields})
    assert page.status_code == 409
    assert "Changed since you looked" in page.text
    assert '<del translate="no">0</del><ins translate="no">9</ins>' in flat(page.text)
    assert state(task) == ("FAILED", 12)


def test_a_stale_page_says_who_changed_the_row(operator):
    task = rows.failed()
    old = seen(task)
    confirm(client_of("Operators", username="otto"), "cancel", task, reason="not wanted")
    page = operator.post(f"{DO}requeue/", {"seen": old, "confirmed": "1"})
    assert page.status_code == 409
    assert "otto (page): cancel: not wanted" in flat(page.text)
    assert state(task)[0] == "CANCELLED"


def test_somebody_elses_same_action_is_a_change(operator):
    task = rows.failed()
    old = seen(task)
    confirm(client_of("Operators", username="otto"), "requeue", task)
    page = operator.post(f"{DO}requeue/", {"seen": old, "confirmed": "1"})
    assert page.status_code == 409
    assert "otto (page): requeue" in flat(page.text)


def test_ones_own_action_on_another_version_is_a_change(operator):
    task = rows.failed()
    old = seen(task)
    Task.objects.filter(pk=task.pk).update(priority=9)
    task.refresh_from_db()
    confirm(operator, "requeue", task)
    assert operator.post(f"{DO}requeue/", {"seen": old, "confirmed": "1"}).status_code == 409


@pytest.mark.parametrize("has_preview", [False, True], ids=["its page", "its preview"])
def test_ones_own_action_in_another_tab_is_a_change(operator, has_preview):
    task = rows.failed()
    first, second = (hidden(press(operator, "requeue", task).text) for _ in range(2))
    old = second if has_preview else {"seen": seen(task)}
    operator.post(f"{DO}requeue/", first, follow=True)
    page = operator.post(f"{DO}requeue/", old)
    assert page.status_code == 409
    assert "anna (page): requeue" in flat(page.text)
    assert "done for" not in page.text
    assert state(task) == ("READY", 12)


def test_the_same_form_twenty_minutes_later_is_no_double_click(operator):
    task = rows.failed()
    form = hidden(press(operator, "requeue", task).text)
    operator.post(f"{DO}requeue/", form, follow=True)
    SubmittedForm.objects.update(at=timezone.now() - timedelta(minutes=20))
    page = operator.post(f"{DO}requeue/", form)
    assert page.status_code == 409
    assert "done for" not in page.text


def test_one_stale_row_of_a_selection_keeps_all_as_they_are(operator):
    fresh, stale = rows.failed(), rows.failed()
    old = seen(fresh, stale)
    Task.objects.filter(pk=stale.pk).update(priority=9)
    page = operator.post(f"{DO}requeue/", {"seen": old, "confirmed": "1"})
    assert page.status_code == 409
    assert state(fresh)[0] == "FAILED"


def test_a_task_that_was_pruned_meanwhile_is_stale(operator):
    task = rows.failed()
    old = seen(task)
    task.delete()
    page = operator.post(f"{DO}requeue/", {"seen": old, "confirmed": "1"})
    assert page.status_code == 409
    assert "there is no such task any more" in page.text


def test_looking_again_leads_from_the_stale_page_to_the_action(operator):
    task = rows.failed()
    old = seen(task)
    Task.objects.filter(pk=task.pk).update(priority=9)
    stale = operator.post(f"{DO}requeue/", {"seen": old, "confirmed": "1"})
    assert 'name="confirmed"' not in stale.text
    assert not SubmittedForm.objects.exists()
    task.refresh_from_db()
    assert seen(task)[0].replace('"', "&quot;") in stale.text
    confirm(operator, "requeue", task)
    assert state(task)[0] == "READY"
