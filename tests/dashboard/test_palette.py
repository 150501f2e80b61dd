"""The palette's answers: by number and by name, for those who may see it, and without tables that are locked."""

import pytest
from django.db import connection
from django.test import Client

from tasks.models import Worker
from tests.orders.orders import placed
from tests.people import client_of
from tests.sessions import session
from tests.tasks import rows

pytestmark = pytest.mark.django_db
PALETTE = "/admin/ops/palette/"


def labels(client: Client, text: str) -> list[str]:
    return [found["label"] for found in client.get(PALETTE, {"q": text}).json()["found"]]


def test_a_number_is_a_task_an_order_and_a_session():
    task, pid = rows.failed(), connection.connection.info.backend_pid
    (order,) = placed()
    client = client_of(is_superuser=True)
    assert f"Task #{task.pk} {task.task_path.rpartition('.')[2]} · FAILED" in labels(client, f"#{task.pk}")
    assert f"Order {order.pk}" in labels(client, str(order.pk))
    assert any(label.startswith(f"Session {pid} ") for label in labels(client, str(pid)))


def test_a_name_is_a_queue_a_worker_and_a_function():
    rows.ready(queue_name="payouts")
    client = client_of("Viewers")
    with rows.living_worker("w7f3", task_paths=["shop.tasks.pay_out"]):
        assert "Queue payouts" in labels(client, "PAY")
        assert "Tasks shop.tasks.pay_out" in labels(client, "Pay_O")
        assert "Worker w7f3 (host, pid 1)" in labels(client, "w7")


def test_what_a_person_may_not_see_is_not_named():
    task = rows.failed()
    assert labels(client_of(), str(task.pk)) == []


@pytest.mark.parametrize("text", ["", "9" * 30, "'; --", "٣", "%"])
def test_odd_questions_find_nothing(text):
    assert labels(client_of("Viewers"), text) == []


@pytest.mark.django_db(transaction=True)
def test_a_locked_table_leaves_out_its_answers_alone():
    task = rows.failed()
    (order,) = placed(id=task.pk)
    client = client_of(is_superuser=True)
    with session() as other:
        other.execute("LOCK TABLE tasks_task")
        assert labels(client, str(task.pk)) == [f"Order {order.pk}"]


def test_the_word_before_a_number_puts_its_kind_first():
    task = rows.failed()
    (order,) = placed(id=task.pk)
    client = client_of(is_superuser=True)
    assert labels(client, f"order {order.pk}")[0] == f"Order {order.pk}"
    assert labels(client, f"task #{task.pk}")[0].startswith(f"Task #{task.pk} ")


def test_a_pid_is_also_that_of_a_worker():
    with rows.living_worker("w7f3"):
        Worker.objects.update(pid=41234)
        assert "Worker w7f3 (host, pid 41234)" in labels(client_of("Viewers"), "41234")


def test_pages_beside_the_menu_are_found_by_those_who_may_see_them():
    assert "Lock history" in labels(client_of("Viewers"), "history")
    assert labels(client_of(), "history") == []
