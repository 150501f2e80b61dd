"""Enqueueing a registered task from a form: once, checked as `enqueue_task` checks it, its command shown."""

import html
import re
import shlex

import pytest
from django.test import Client

from tasks.models import Intervention, Task
from tasks.operations import tokens
from tests.commands import run
from tests.people import client_of, person
from tests.tasks import handlers

ENQUEUE = "/admin/tasks/task/enqueue/"
ADD = handlers.add.module_path

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator():
    return client_of("Operators")


def submit(client: Client, *, token: str = "", **fields: str):
    values = {"task": ADD, "args": "[1, 2]", "token": token or tokens.new_token(), **fields}
    return client.post(ENQUEUE, values, follow=True)


def command_of(page) -> list[str]:
    line = re.search(r'<p role="status">.*?<code translate="no">(.*?)</code>', page.text, re.DOTALL)[1]
    return shlex.split(html.unescape(line))[2:]


def test_a_task_is_enqueued_and_shown(operator):
    page = submit(
        operator,
        args="[1]",
        kwargs='{"second": 2}',
        queue_name="slow",
        priority="7",
        run_after="2031-01-31T03:00:00+02:00",
        ordering_key="anna",
        reason="by hand",
    )
    task = Task.objects.get()
    assert page.redirect_chain == [(f"/admin/tasks/task/{task.pk}/", 302)]
    assert f"Enqueued as #{task.pk}." in page.text
    assert (task.args, task.kwargs, task.queue_name, task.priority, task.ordering_key) == (
        [1], {"second": 2}, "slow", 7, "anna",
    )  # fmt: skip
    assert task.run_after.isoformat() == "2031-01-31T01:00:00+00:00"
    entry = Intervention.objects.get()
    assert (entry.actor, entry.source, entry.action, entry.reason) == ("anna", "page", "enqueue", "by hand")


def test_a_double_click_enqueues_one(operator):
    token = tokens.new_token()
    first, second = submit(operator, token=token), submit(operator, token=token)
    assert first.redirect_chain == second.redirect_chain
    assert Task.objects.count() == Intervention.objects.count() == 1


def test_checking_shows_the_command_that_does_the_same_and_enqueues_nothing(operator):
    page = submit(operator, check="1", kwargs='{"note": "it\'s ü"}', args="", queue_name="slow", priority="-3")
    assert not Task.objects.exists()
    run(*command_of(page))
    task = Task.objects.get()
    assert (task.kwargs, task.queue_name, task.priority) == ({"note": "it's ü"}, "slow", -3)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"task": "tests.tasks.handlers.ad"}, "Did you mean"),
        ({"task": "os.system"}, "No task is registered as"),
        ({"task": "tasks.tasks.run_bulk_action"}, "belongs to a page of its own"),
        ({"task": ""}, "This field is required"),
        ({"args": "{}"}, "is JSON but not an array"),
        ({"args": "[1"}, "is not JSON"),
        ({"kwargs": "[]"}, "is JSON but not an object"),
        ({"kwargs": '{"a": NaN}'}, "is no JSON value"),
        ({"priority": "101"}, "is not a priority"),
        ({"run_after": "tomorrow"}, "is not a time"),
        ({"queue_name": "q" * 300}, "at most 255 fit"),
        ({"task": handlers.by_account.module_path, "args": ""}, "The ordering key of"),
    ],
)
def test_what_the_command_refuses_the_form_refuses_with_its_words(operator, fields, sentence):
    page = submit(operator, **fields)
    assert page.status_code == 400
    assert sentence in html.unescape(page.text)
    assert not Task.objects.exists()


def test_the_registered_tasks_are_listed_with_what_they_take(operator):
    page = operator.get(f"{ENQUEUE}?task={ADD}")
    assert "(first: int, second: int)" in page.text
    assert f'value="{ADD}"' in page.text
    assert "tasks.tasks." not in page.text


def test_a_viewer_sees_the_form_and_which_right_is_missing():
    viewer = client_of("Viewers")
    page = viewer.get(ENQUEUE).text
    assert "tasks.enqueue_task" in page
    assert page.count("disabled") == 2
    assert submit(viewer).status_code == 403
    assert not Task.objects.exists()


def test_without_a_token_nothing_is_enqueued(operator):
    assert submit(operator, token="short").redirect_chain
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(person("Operators"))
    assert submit(strict).status_code == 403
    assert not Task.objects.exists()
