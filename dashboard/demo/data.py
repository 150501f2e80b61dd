"""The demo's data, loaded once: tasks in every state, orders to mail, an overdue command."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from dashboard import demo
from dashboard.models import DemoRow
from dashboard.tasks import (
    charge_card,
    count_primes,
    nap,
    reach_busy_server,
    write_invoice,
    write_letter,
)
from orders.models import Order
from tasks.compat import Task
from tasks.declaration import PostgresTask
from tasks.models import ExpectedCommand, Queue

CUSTOMERS = ("ada", "grace", "edsger")
TO_MAIL = (
    "ada",
    "grace",
    "edsger",
    "barbara",
    "donald",
    "frances",
    "john",
    "margaret",
    "niklaus",
    "radia",
    "tim",
    "sophie",
)
UNKNOWN = "leslie"
DECLINED = 14
Calls = list[tuple["Task[Any, Any]", list[list[Any]]]]  # quoted, because it takes no parameters in Django 6


@transaction.atomic
def load_once() -> int:
    """Load and list the demo's rows, unless that was done before. Returns the number of tasks."""
    _, is_first = DemoRow.objects.get_or_create(kind=DemoRow.Kind.QUEUE, row_id=0, name=demo.REPORTS)
    if not is_first:
        return 0
    list_names(DemoRow.Kind.QUEUE, set(demo.QUEUES) - {demo.REPORTS})
    list_names(DemoRow.Kind.COMMAND, [demo.NIGHTLY])
    Queue.objects.get_or_create(name=demo.PAYOUTS, defaults={"recovery": Queue.Recovery.ASK})
    list_ids(DemoRow.Kind.ORDER, make_orders())
    expect_what_nobody_starts()
    task_ids = enqueue()
    list_ids(DemoRow.Kind.TASK, task_ids)
    return len(task_ids)


def list_ids(kind: DemoRow.Kind, ids: Iterable[int]) -> None:
    """List rows that the demo makes, in the same transaction."""
    DemoRow.objects.bulk_create(DemoRow(kind=kind, row_id=row_id, name="") for row_id in ids)


def list_names(kind: DemoRow.Kind, names: Iterable[str]) -> None:
    """List names that belong to the demo."""
    DemoRow.objects.bulk_create(DemoRow(kind=kind, row_id=0, name=name) for name in names)


def enqueue() -> list[int]:
    """Enqueue tasks that end in every way or wait for every reason. Returns their ids."""
    tomorrow = timezone.now() + timedelta(days=1)
    calls: Calls = [
        (count_primes, [[number * 1000] for number in range(1, 21)]),
        (nap, [[seconds / 2] for seconds in range(1, 5)]),
        (write_letter, [[name, number] for number in range(1, 5) for name in CUSTOMERS]),
        (reach_busy_server, [[]]),
        (charge_card, [[1000 + number] for number in range(DECLINED)]),
        (write_invoice, [["konrad", number] for number in range(1, 5)]),
        (count_primes.using(run_after=tomorrow, priority=10), [[50_000]] * 3),
    ]
    return [
        task_id for task, args in calls for task_id in PostgresTask.of(task).enqueue_many((each, {}) for each in args)
    ]


def make_orders() -> list[int]:
    """Make twelve orders to mail, and one whose e-mail may or may not have been sent. Returns their ids."""
    now = timezone.now()
    orders = Order.objects.bulk_create(Order(customer_email=f"{name}{demo.DOMAIN}", shipped_at=now) for name in TO_MAIL)
    unknown = Order.objects.create(
        customer_email=f"{UNKNOWN}{demo.DOMAIN}", shipped_at=now, email_state=Order.EmailState.UNKNOWN,
        email_since=now, email_attempts=1, email_reply="no answer after DATA within 20 s",
    )  # fmt: skip
    return [order.pk for order in (*orders, unknown)]


def expect_what_nobody_starts() -> None:
    """Expect an hourly report whose crontab line was lost two days ago."""
    since = timezone.now() - timedelta(days=2)
    ExpectedCommand.objects.get_or_create(
        name=demo.NIGHTLY, defaults={"every": timedelta(hours=1), "since": since, "succeeded_at": None}
    )
