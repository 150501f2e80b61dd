"""What the buttons of a schedule do: at once or after a question, once, and only to what the person saw."""

import pytest

from tasks.models import Intervention, Schedule, Task
from tasks.operations import schedules, tokens
from tasks.support.audit import Who
from tests.dashboard.schedules.made import NOTHING, PAGE, declared, made
from tests.html import hidden
from tests.people import client_of
from tests.tasks import rows

pytestmark = pytest.mark.django_db
WHO = Who("ann", "page")


@pytest.fixture
def operator():
    return client_of("Operators")


def press(client, action: str, schedule: str = "1 nightly", **fields: str):
    return client.post(f"{PAGE}do/{action}/", {"schedule": schedule, **fields})


def confirmed(client, action: str, schedule: str = "1 nightly", **fields: str):
    return press(client, action, schedule, confirmed="1", token=tokens.new_token(), **fields)


def test_pause_and_resume_act_at_once(operator):
    made()
    assert press(operator, "pause", search="?q=night").headers["Location"] == f"{PAGE}?q=night"
    assert (Schedule.objects.get().paused, Schedule.objects.get().paused_by) == (True, "anna")
    assert "Schedule nightly is paused." in operator.get(PAGE).text
    assert press(operator, "resume", "2 nightly").status_code == 302
    assert not Schedule.objects.get().paused
    assert [entry.action for entry in Intervention.objects.order_by("id")] == ["pause", "resume"]


def test_resume_asks_where_it_would_make_up_for_the_pause(operator):
    made(missed="all", due_in=-7200, paused=True)
    answer = press(operator, "resume")
    assert "this schedule makes up for them" in answer.text
    assert Schedule.objects.get().paused
    confirmed(operator, "resume")
    assert not Schedule.objects.get().paused


def test_run_now_asks_first_says_what_it_waits_for_and_enqueues_once(operator):
    earlier = rows.ready()
    row = made(args=[1], kwargs={"token": "t-123"}, last_task_id=earlier.pk)
    question = press(operator, "run")
    assert f"Its task #{earlier.pk} is unfinished: the new one waits behind it." in " ".join(question.text.split())
    assert "t-123" not in question.text
    assert "run_schedule nightly" in question.text
    assert Task.objects.count() == 1
    form = {**hidden(question.text), "reason": "wanted now"}
    answers = [operator.post(f"{PAGE}do/run/", form) for _double_click in range(2)]
    assert [answer.status_code for answer in answers] == [302, 302]
    task = Task.objects.exclude(pk=earlier.pk).get()
    assert (task.args, Schedule.objects.get().next_at) == ([1], row.next_at)
    link = f'<a href="/admin/tasks/task/{task.pk}/">#{task.pk}</a>'
    assert f"Schedule nightly was enqueued as {link}." in operator.get(PAGE).text
    assert Intervention.objects.get().reason == "wanted now"


def test_back_to_the_declared_one(operator):
    declared()
    assert "edit_schedule" in press(operator, "revert", f"1 {NOTHING}").text
    confirmed(operator, "revert", f"1 {NOTHING}")
    assert (Schedule.objects.get().cron, Schedule.objects.get().overridden) == ("0 4 * * *", [])


def test_delete_asks_and_what_code_declares_stays(operator):
    made(), declared()
    press(operator, "delete")
    assert Schedule.objects.count() == 2
    confirmed(operator, "delete")
    confirmed(operator, "delete", f"1 {NOTHING}")
    assert Schedule.objects.get().name == NOTHING
    assert "is declared in code" in operator.get(PAGE).text


@pytest.mark.parametrize("action", ["run", "pause", "resume", "revert", "delete"])
def test_what_changed_since_is_refused_and_says_who_changed_it(operator, action):
    declared("nightly")
    schedules.edit("nightly", WHO, {"overlap": "queue"}, reason="it took too long")
    before = Schedule.objects.values().get()
    answer = confirmed(operator, action)
    assert answer.status_code == 409
    assert "edit overlap=queue it took too long" in answer.text
    assert hidden(answer.text)["schedule"] == "2 nightly"
    assert (Schedule.objects.values().get(), Task.objects.count()) == (before, 0)


def test_a_tick_since_is_no_change(operator):
    made()
    Schedule.objects.update(last_task_id=7)
    assert press(operator, "pause").status_code == 302
    assert Schedule.objects.get().paused


def test_a_schedule_that_is_gone_is_said(operator):
    assert press(operator, "pause").status_code == 302
    assert "There is no schedule" in operator.get(PAGE).text


@pytest.mark.parametrize("schedule", ["", "nightly", "x nightly", "1 ", f"{2**31} nightly", "1 " + "x" * 300, "1 a\nb"])
def test_a_form_that_no_page_made(operator, schedule):
    made()
    answer = press(operator, "pause", schedule)
    assert (answer.status_code, "not made by this page" in answer.text) == (400, True)
    assert not Schedule.objects.get().paused


@pytest.mark.parametrize("action", ["run", "pause", "resume", "revert", "delete"])
def test_viewers_may_not(action):
    made()
    assert confirmed(client_of("Viewers"), action).status_code == 403
    assert client_of("Operators").get(f"{PAGE}do/{action}/").status_code == 405


def test_upkeep_is_switched_on_with_one_click(operator):
    assert "Delete finished tasks older than 30 days" in operator.get(PAGE).text
    for _double_click in range(2):
        assert operator.post(f"{PAGE}switch-on/", {"name": "prune-tasks"}).status_code == 302
    row = Schedule.objects.get()
    assert (row.task_path, row.kwargs, row.cron) == ("tasks.tasks.prune_tasks", {"older_than": "30d"}, "15 3 * * *")
    assert 'value="prune-tasks"' not in operator.get(PAGE).text.split('class="offers"')[1]
    assert Intervention.objects.count() == 1
    operator.post(f"{PAGE}switch-on/", {"name": "no such thing"})
    assert "There is no upkeep called" in operator.get(PAGE).text
    assert client_of("Viewers").post(f"{PAGE}switch-on/", {"name": "prune-history"}).status_code == 403


def test_another_site_is_not_led_to(operator):
    made()
    assert press(operator, "pause", search="//evil.example").headers["Location"] == PAGE
