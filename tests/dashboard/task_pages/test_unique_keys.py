"""Unique keys on the pages: who has a task's key, what the enqueue form did, and which refusals a person reads."""

import html

import pytest
from django.db import connection

from dashboard.task_pages.actions import Seen
from tasks.models import Intervention, Task
from tasks.operations import tokens
from tests.commands import run
from tests.people import client_of
from tests.sessions import session
from tests.tasks import handlers, rows

pytestmark = pytest.mark.django_db
LIST = "/admin/tasks/task/"
ENQUEUE = f"{LIST}enqueue/"
INSERT = "INSERT INTO tasks_task (task_path, unique_key, unique_while) VALUES ('any.task', 'page 7', 'a')"


@pytest.fixture
def operator():
    return client_of("Operators")


def page_of(client, task: Task) -> str:
    return html.unescape(client.get(f"{LIST}{task.pk}/").text)


def enqueue(client, task=handlers.echo, **fields: str):
    values = {"task": task.module_path, "token": tokens.new_token(), **fields}
    return client.post(ENQUEUE, values, follow=True)


def test_a_task_s_page_shows_its_key_and_links_to_the_task_that_has_it(operator):
    task = rows.failed(unique_key="page <7>", unique_while="a")
    assert "page <7>" in page_of(operator, task)
    assert "has it now" not in page_of(operator, task)
    holder = rows.ready(unique_key="page <7>", unique_while="a")
    assert f'href="{LIST}{holder.pk}/"' in page_of(operator, task)
    assert f"#{holder.pk} has it now" in page_of(operator, task)
    assert "has it now" not in page_of(operator, holder)


def test_a_task_without_a_key_shows_none(operator):
    assert "Unique key" not in page_of(operator, rows.ready())


def test_the_form_leads_to_the_task_that_has_the_key_and_says_that_it_stays(operator):
    first = enqueue(operator, **{"arg-value": "1", "unique_key": "page 7"})
    task = Task.objects.get()
    assert (task.unique_key, task.args) == ("page 7", [1])
    second = enqueue(operator, **{"arg-value": "2", "unique_key": "page 7"})
    assert first.redirect_chain == second.redirect_chain
    assert f"#{task.pk} has this unique key, and stays as it is" in second.text
    assert Task.objects.get().args == [1]
    assert Intervention.objects.count() == 1


def test_a_replaced_task_is_said_to_be_one(operator):
    task = rows.ready(unique_key="page 7", unique_while="a", args=["page 7", 1])
    answer = enqueue(operator, handlers.index_latest, **{"arg-document": "page 7", "args": "[2]"})
    assert f"#{task.pk} has this unique key, and has these arguments now." in answer.text
    task.refresh_from_db()
    assert task.args[1:] == [2]
    assert Intervention.objects.get().action == "replace"


def test_the_checked_command_has_the_key(operator):
    answer = enqueue(operator, check="1", unique_key="page 7", **{"arg-value": "1"})
    assert "--unique-key 'page 7'" in html.unescape(answer.text)
    assert not Task.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_the_form_says_that_another_transaction_holds_up_the_key(operator):
    with session() as other:
        other.execute(INSERT)
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '50ms'")
        answer = enqueue(operator, unique_key="page 7", **{"arg-value": "1"})
    assert answer.status_code == 400
    assert "The unique key 'page 7' is held up by another transaction" in html.unescape(answer.text)
    assert not Task.objects.exists()


def test_a_requeue_from_the_page_is_refused_with_the_holder(operator):
    task, holder = rows.failed(unique_key="k", unique_while="a"), rows.ready(unique_key="k", unique_while="a")
    form = {"seen": [str(Seen.of(task))], "next": LIST, "confirmed": "1"}
    answer = operator.post(f"{LIST}do/requeue/", form, follow=True)
    assert f"task #{holder.pk} has its unique key k" in html.unescape(answer.text)
    task.refresh_from_db()
    assert task.status == "FAILED"


def test_an_edit_from_the_command_keeps_the_key():
    task = rows.ready(unique_key="k", unique_while="a")
    run("edit_tasks", task.pk, "--set-priority", 5)
    task.refresh_from_db()
    assert (task.priority, task.unique_key, task.unique_while) == (5, "k", "a")


def test_show_task_shows_the_key():
    task = rows.ready(unique_key="k", unique_while="q")
    assert "unique    k (While it is queued)" in run("show_task", task.pk).stdout
