"""The live rows beside a run: some of each kind, which must be the same when it is over."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.contrib.auth.models import User
from django.db import connection

from orders.models import Account, Order
from tasks.models import Task
from tests.tasks import rows

TABLES = ("tasks_task", "tasks_worker", "tasks_lock", "orders_order", "orders_account", "orders_entry", "auth_user")
SCHEMAS = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'lab%'"
FENCE = "SELECT last_value, is_called FROM rowlock_fence"


@contextmanager
def rows_unchanged() -> Iterator[None]:
    """Within the block, live rows that a run's own code would take for its work; none is touched, no schema stays."""
    if not Task.objects.exists():
        rows.ready(queue_name="lab")
        Order.objects.create(customer_email="a@example.test", shipped_at="2026-01-01T00:00Z")
        Account.objects.create(owner=User.objects.create_user("anna", is_active=False))
    before = seen()
    yield
    assert seen() == before
    assert fetched(SCHEMAS) == [(0,)]


def seen() -> list[Any]:
    """Every row that a run could reach, and the sequence of the fences."""
    return [*(fetched(f"SELECT * FROM {table} ORDER BY 1") for table in TABLES), fetched(FENCE)]


def fetched(statement: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()
