"""What the demo loads once: tasks in every state, orders to mail, a cron line that is overdue."""

from datetime import timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from dashboard import demo
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
Calls = list[tuple["Task[Any, Any]", list[list[Any]]]]  # quoted: it takes no parameters in Django 6


@transaction.atomic
def load_once() -> int:
    """Loads the demo's rows unless that was done before; how many tasks.

    The row of its first queue remembers that, whatever has become of the tasks.
    """
    _, is_first = Queue.objects.get_or_create(name=demo.REPORTS)
    if not is_first:
        return 0
    Queue.objects.get_or_create(name=demo.PAYOUTS, defaults={"recovery": Queue.Recovery.ASK})
    make_orders()
    expect_what_nobody_starts()
    return len(enqueue())


def enqueue() -> list[int]:
    """Tasks that complete, take time, keep an order, fail once, fail for good (for one reason), wait for tomorrow or
    behind another one; their ids.
    """
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


def make_orders() -> None:
    """Twelve orders whose e-mail is to be sent, and one of which nobody knows whether it was."""
    now = timezone.now()
    Order.objects.bulk_create(Order(customer_email=f"{name}{demo.DOMAIN}", shipped_at=now) for name in TO_MAIL)
    Order.objects.create(
        customer_email=f"{UNKNOWN}{demo.DOMAIN}", shipped_at=now, email_state=Order.EmailState.UNKNOWN,
        email_since=now, email_attempts=1, email_reply="no answer after DATA within 20 s",
    )  # fmt: skip


def expect_what_nobody_starts() -> None:
    """A report that should have run every hour, and whose cron line somebody lost the day before yesterday."""
    since = timezone.now() - timedelta(days=2)
    ExpectedCommand.objects.get_or_create(
        name=demo.NIGHTLY, defaults={"every": timedelta(hours=1), "since": since, "succeeded_at": None}
    )
