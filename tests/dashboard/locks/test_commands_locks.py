"""`show_locks` and `signal_backend`, as an operator types them."""

from datetime import timedelta

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import connection

from orders.models import Account, Order
from tasks.models import Intervention, Task
from tests.commands import run
from tests.sessions import session
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def started(pid: int) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT backend_start FROM pg_stat_activity WHERE pid = %s", [pid])
        return cursor.fetchone()[0].isoformat()


def is_gone(pid: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", [pid])
        return cursor.fetchone()[0] == 0


def test_held_rows_of_tasks_orders_and_accounts_name_their_holder() -> None:
    account = Account.objects.create(owner=User.objects.create_user("anna"))
    order = Order.objects.create(customer_email="a@example.test")
    task = Task.objects.create(task_path="x.y")
    with session() as holder:
        for row in (account, order, task):
            holder.execute(f"SELECT 1 FROM {row._meta.db_table} WHERE id = %s FOR UPDATE", [row.pk])
        rows = run("show_locks", "--json").data["rows"]
        pid = holder.info.backend_pid
    assert {(row["table"], row["id"], row["pid"]) for row in rows} == {
        ("orders_account", account.pk, pid),
        ("orders_order", order.pk, pid),
        ("tasks_task", task.pk, pid),
    }


def test_rows_beyond_the_newest_are_found_when_named() -> None:
    orders = Order.objects.bulk_create(Order(customer_email="a@example.test") for _ in range(205))
    with session() as holder:
        holder.execute("SELECT 1 FROM orders_order WHERE id = %s FOR UPDATE", [orders[0].pk])
        assert run("show_locks", "--json").data["rows"] == []
        named = run("show_locks", "--json", "--table", "orders_order", "--ids", orders[0].pk)
    assert [row["id"] for row in named.data["rows"]] == [orders[0].pk]


def test_a_table_that_no_model_has_is_refused() -> None:
    outcome = run("show_locks", "--table", "pg_authid; DROP", "--ids", "1")
    assert outcome.status == 1
    assert "No model has the table" in outcome.stderr
    assert run("show_locks", "--table", "tasks_task").status == 2


@pytest.mark.parametrize("action", ["cancel", "terminate"])
def test_the_very_backend_that_was_seen_is_signalled_and_audited(action: str) -> None:
    with psycopg.connect(**session_params()) as victim:
        pid = victim.info.backend_pid
        outcome = run("signal_backend", pid, "--started", started(pid), f"--{action}", "--reason", "stuck", "--json")
        assert outcome.data == {"signalled": True}
        if action == "terminate":
            wait_until(lambda: is_gone(pid))
            victim.close()
    row = Intervention.objects.get()
    assert (row.action.split()[0], row.target, row.reason) == (action, f"backend:{pid}", "stuck")


def test_a_pid_that_is_another_backend_by_now_is_refused() -> None:
    """The guard is the start: the pid alone would end whoever has it now."""
    with psycopg.connect(**session_params()) as victim:
        pid = victim.info.backend_pid
        seen = victim.execute("SELECT backend_start FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone()
        assert seen
        earlier = (seen[0] - timedelta(microseconds=1)).isoformat()
        outcome = run("signal_backend", pid, "--started", earlier, "--terminate", "--json")
        assert outcome.status == 1
        assert outcome.data == {"signalled": False}
        assert "another backend by now" in outcome.stderr
        assert not is_gone(pid)
    assert not Intervention.objects.exists()


def test_the_dashboards_own_sessions_are_not_signalled() -> None:
    with psycopg.connect(**session_params(), application_name="rowlock:web") as web:
        pid = web.info.backend_pid
        outcome = run("signal_backend", pid, "--started", started(pid), "--terminate")
        assert outcome.status == 1
        assert "dashboard's own" in outcome.stderr
        assert not is_gone(pid)


def test_a_dry_run_signals_nobody() -> None:
    with psycopg.connect(**session_params()) as victim:
        pid = victim.info.backend_pid
        outcome = run("signal_backend", pid, "--started", started(pid), "--terminate", "--dry-run", "--json")
        assert (outcome.status, outcome.data) == (0, {"signalled": False})
        assert not is_gone(pid)


def session_params() -> dict[str, object]:
    keys = ("dbname", "host", "port", "user", "password")
    return {key: value for key, value in connection.get_connection_params().items() if key in keys}
