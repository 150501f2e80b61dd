"""Twenty equal clicks at one moment do one thing, and none of them ends in an error of the server."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.test import Client

from dashboard.task_pages.actions import Seen
from orders import accounts
from orders.models import Account
from tasks.models import Intervention, Task
from tasks.operations.tokens import new_token
from tests.people import client_of
from tests.tasks import handlers, rows

pytestmark = pytest.mark.django_db(transaction=True)
CLICKS = 20
TASKS = "/admin/tasks/task/"
Click = tuple[str, str, dict[str, Any], Callable[[], object], object]


def run_again() -> Click:
    task = rows.failed()
    form = {"seen": str(Seen.of(task)), "next": TASKS, "confirmed": "1"}
    return "Operators", f"{TASKS}do/requeue/", form, lambda: Task.objects.get().version, task.version + 1


def cancel() -> Click:
    form = {"seen": str(Seen.of(rows.ready())), "next": TASKS, "confirmed": "1", "reason": "a test"}
    return "Operators", f"{TASKS}do/cancel/", form, lambda: Task.objects.get().status, "CANCELLED"


def enqueue() -> Click:
    form = {"task": handlers.add.module_path, "arg-first": "1", "arg-second": "2", "token": new_token()}
    return "Operators", f"{TASKS}enqueue/", form, Task.objects.count, 1


def move_money() -> Click:
    account = Account.objects.create(owner=User.objects.create_user("owner"))
    accounts.deposit(account.pk, Decimal(100))
    form = {"operation": "withdraw", "amount": "1.00", "strategy": "optimistic", "token": new_token()}
    address = f"/admin/orders/account/{account.pk}/move/"
    return "Account managers", address, form, lambda: Account.objects.get().balance, Decimal(99)


@pytest.mark.parametrize("prepared", [run_again, cancel, enqueue, move_money])
def test_twenty_equal_clicks_do_one_thing(prepared: Callable[[], Click]) -> None:
    group, address, form, state, expected = prepared()
    cookies = client_of(group).cookies
    together = threading.Barrier(CLICKS)

    def click(_: int) -> int:
        client = Client(raise_request_exception=False)
        client.cookies.update(cookies)
        together.wait(30)
        try:
            return client.post(address, form).status_code
        finally:
            connections.close_all()

    with ThreadPoolExecutor(CLICKS) as pool:
        answers = set(pool.map(click, range(CLICKS)))
    # 302: done, or done before; 409: changed or held meanwhile; 503: the first took more than two seconds.
    assert 302 in answers
    assert answers <= {302, 409, 503}
    assert state() == expected
    assert Intervention.objects.count() == 1
