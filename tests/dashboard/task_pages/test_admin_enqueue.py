"""Enqueueing a task from a form made of its signature: once, checked by name, its command shown."""

import html
import re
import shlex

import pytest
from django.test import Client

from dashboard.task_pages import signature
from tasks.framework import declaration
from tasks.models import Intervention, Task
from tasks.operations import tokens
from tests.commands import run
from tests.people import client_of, person
from tests.tasks import handlers

ENQUEUE = "/admin/tasks/task/enqueue/"
ADD, ANYTHING, TYPED = handlers.add.module_path, handlers.nothing.module_path, handlers.typed.module_path
GIVEN = {
    "arg_count": "3", "arg_text": " a b ", "arg_is_loud": "true", "arg_ratio": "0.5", "arg_price": "12.50",
    "arg_day": "2030-01-31", "arg_at": "2030-01-31T03:00:00+02:00", "arg_ref": "00000000000000000000000000004711",
    "arg_names": '["x"]', "arg_extra": '{"a": 1}', "arg_colour": "red", "arg_limit": "", "arg_thing": "[1]",
}  # fmt: skip

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator():
    return client_of("Operators")


def submit(client: Client, *, token: str = "", task: str = ADD, **fields: str):
    arguments = {"arg-first": "1", "arg-second": "2"} if task == ADD else {}
    values = {**arguments, **{name.replace("arg_", "arg-"): value for name, value in fields.items()}}
    return client.post(ENQUEUE, {"task": task, "token": token or tokens.new_token(), **values}, follow=True)


def command_of(page) -> list[str]:
    line = re.search(r'<p role="status">.*?<code translate="no">(.*?)</code>', page.text, re.DOTALL)[1]
    return shlex.split(html.unescape(line))[2:]


def test_a_task_is_enqueued_and_shown(operator):
    page = submit(
        operator,
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
        [1, 2], {}, "slow", 7, "anna",
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
    page = submit(
        operator, task=ANYTHING, check="1", kwargs='{"note": "it\'s ü"}', args="", queue_name="slow", priority="-3"
    )
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
        ({"task": ""}, "Choose a task."),
        ({"task": ANYTHING, "args": "{}"}, "is JSON but not an array"),
        ({"task": ANYTHING, "args": "[1"}, "is not JSON"),
        ({"task": ANYTHING, "kwargs": "[]"}, "is JSON but not an object"),
        ({"task": ANYTHING, "kwargs": '{"a": NaN}'}, "is no JSON value"),
        ({"arg_first": "one"}, "first: 'one' is not a whole number."),
        ({"arg_first": ""}, "first: give a value."),
        ({"priority": "101"}, "is not a priority"),
        ({"run_after": "tomorrow"}, "is not a time"),
        ({"queue_name": "q" * 300}, "at most 255 fit"),
        ({"task": handlers.by_account.module_path, "arg_account": "x", "args": "[NaN]"}, "is no JSON value"),
        ({"task": handlers.log_in.module_path, "arg_user": "a"}, "password: give a value."),
    ],
)
def test_what_cannot_be_called_is_refused_by_name(operator, fields, sentence):
    page = submit(operator, **fields)
    assert page.status_code == 400
    assert sentence in html.unescape(page.text)
    assert not Task.objects.exists()


@pytest.mark.parametrize(
    ("name", "wrong", "sentence"),
    [
        ("count", "1_000", "is not a whole number"),
        ("ratio", "half", "is not a number"),
        ("price", "1e5", "is not a number"),
        ("day", "2030-02-30", "is not a date"),
        ("at", "noon", "is not a time"),
        ("ref", "4711", "is not a UUID"),
        ("is_loud", "maybe", "choose one of the values"),
        ("colour", "green", "choose one of the values"),
        ("names", "{}", "not an array"),
        ("extra", "[]", "not an object"),
        ("thing", "anna", "is not JSON"),
    ],
)
def test_each_type_is_checked(operator, name, wrong, sentence):
    page = submit(operator, task=TYPED, **{**GIVEN, f"arg_{name}": wrong})
    assert page.status_code == 400
    assert f"{name}: " in page.text
    assert sentence in html.unescape(page.text)
    assert not Task.objects.exists()


def test_a_call_is_made_of_the_types_of_the_signature(operator):
    submit(operator, task=TYPED, **GIVEN)
    task = Task.objects.get()
    assert task.args == [
        3, " a b ", True, 0.5, "12.50", "2030-01-31", "2030-01-31T03:00:00+02:00",
        "00000000-0000-0000-0000-000000004711", ["x"], {"a": 1}, "red", None,
    ]  # fmt: skip
    assert task.kwargs == {"thing": [1]}


def test_an_empty_field_leaves_the_default(operator):
    submit(operator, task=handlers.fail.module_path)
    assert (Task.objects.get().args, Task.objects.get().kwargs) == ([], {})
    page = operator.get(ENQUEUE, {"task": handlers.fail.module_path}).text
    assert "default: &#x27;it failed&#x27;" in page


def test_what_comes_after_a_parameter_left_out_is_passed_by_name(operator):
    task = declaration.get(TYPED)
    values = {f"{signature.PREFIX}{one.name}": None for one in signature.parameters(task)}
    args, kwargs = signature.call_of(task, {**values, "arg-thing": 1})
    assert (len(args), kwargs) == (12, {"thing": 1})


def test_the_rest_needs_what_comes_before_it(operator):
    page = submit(operator, task=handlers.default_before_rest.module_path, args="[1]")
    assert "first: give a value, because * comes after it." in page.text
    submit(operator, task=handlers.default_before_rest.module_path, arg_first="5", args="[1]")
    assert Task.objects.get().args == [5, 1]


def test_a_named_rest_cannot_name_a_parameter_again(operator):
    page = submit(operator, task=handlers.default_before_rest.module_path, kwargs='{"first": 1}')
    assert "first has a field of its own" in page.text


def test_the_registered_tasks_are_listed_with_what_they_take(operator):
    page = operator.get(ENQUEUE)
    assert "(first: int, second: int)" in page.text
    assert f'href="?task={ADD}"' in page.text
    assert "Takes anything and does nothing." in page.text
    assert "tasks.tasks." not in page.text


def test_the_default_of_a_secret_is_not_shown(operator):
    page = operator.get(ENQUEUE, {"task": TYPED}).text
    assert "swordfish" not in page
    assert "its default" in page


def test_a_viewer_sees_the_form_and_which_right_is_missing():
    viewer = client_of("Viewers")
    page = viewer.get(ENQUEUE, {"task": ADD}).text
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


def test_the_list_of_functions_hides_the_default_of_a_secret(operator):
    page = operator.get(ENQUEUE).text
    assert "password: str = &#x27;[redacted]&#x27;" in page
    assert "swordfish" not in page
