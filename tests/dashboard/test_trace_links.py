"""The pages link a task and a session to its trace, if the setting names the address of one."""

import threading

import pytest
from django.contrib.auth.models import User
from django.db import connections

from dashboard.locks import activity
from orders.models import Account
from tasks import checks
from tasks.models import Task
from tasks.support import tracing
from tests.dashboard.scenes import LOCK_ACCOUNT, Scene
from tests.people import client_of
from tests.sessions import wait_until_blocked
from tests.waiting import wait_until

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PAGE = "https://traces.example/t/{trace_id}?tab=1&x=2"
LINK = 'href="https://traces.example/t/0af7651916cd43dd8448eb211c80319c?tab=1&amp;x=2"'


@pytest.mark.django_db
@pytest.mark.parametrize(("address", "is_linked"), [(PAGE, True), ("", False), ("javascript:{trace_id}", False)])
def test_the_task_s_page(settings, address, is_linked):
    settings.ROWLOCK = {"TRACE_URL": address}
    task = Task.objects.create(task_path="tests.tasks.handlers.add", traceparent=TRACE)
    html = client_of("Viewers").get(f"/admin/tasks/task/{task.pk}/").content.decode()
    assert (LINK in html, "javascript:" in html) == (is_linked, False)


@pytest.mark.django_db(transaction=True)
def test_the_lock_page(settings):
    settings.ROWLOCK = {"TRACE_URL": PAGE}
    account = Account.objects.create(owner=User.objects.create_user("owner"))
    with Scene() as scene:
        scene.holding("psql", LOCK_ACCOUNT, [account.pk])
        pids: list[int] = []
        thread = threading.Thread(target=lock_as_handler, args=(account.pk, pids))
        thread.start()
        wait_until(lambda: bool(pids))
        wait_until_blocked(pids[0])
        session = activity.read().by_pid[pids[0]]
        html = client_of("Operators").get("/admin/ops/locks/").content.decode()
        scene.sessions["psql"].rollback()
        thread.join(10)
    assert (session.task_id, session.traceparent) == (4711, TRACE)
    assert session.query.startswith("SELECT 1 FROM orders_account")
    assert LINK in html


def lock_as_handler(account_id: int, pids: list[int]) -> None:
    """As a handler of a worker would, in a thread and session of its own."""
    mine = connections["default"]
    handler = tracing.Running(4711, 1, "w1", TRACE)
    try:
        with mine.cursor() as cursor:
            cursor.execute("SET application_name = 'rowlock:worker:w1'")
            cursor.execute("SELECT pg_backend_pid()")
            pids.append(cursor.fetchone()[0])
            cursor.execute(handler.comment + LOCK_ACCOUNT, [account_id])
    finally:
        mine.close()


@pytest.mark.parametrize(
    ("address", "is_right"),
    [
        ("", True),
        (PAGE, True),
        ("http://jaeger:16686/trace/{trace_id}", True),
        ("https://traces.example/", False),
        ("javascript:alert({trace_id})", False),
        ("//traces.example/{trace_id}", False),
        ("https://{trace_id}", False),
    ],
)
def test_the_check_refuses_what_is_no_address_of_a_trace(settings, address, is_right):
    settings.ROWLOCK = {"TRACE_URL": address}
    found = [message for message in checks.check_backend("default", {}) if "TRACE_URL" in message.msg]
    assert [message.id for message in found] == ([] if is_right else ["rowlock.E005"])
