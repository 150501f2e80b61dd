"""A chain of four sessions, each waiting for the one before; the first is idle in transaction. They change nothing."""

import contextlib
import logging
import threading
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import psycopg
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
from tasks.framework.declaration import PostgresTask
from tasks.models import ExpectedCommand, Queue
from tasks.support.database import connect_directly

logger = logging.getLogger(__name__)

# Each session holds a row and waits for the row of the one before; the last one only waits.
NAMES = ("forgotten-psql", "shipping", "invoices", "support")

ROWS = """
SELECT id FROM orders_order WHERE customer_email LIKE '%%' || %(domain)s::text AND shipped_at IS NOT NULL
ORDER BY shipped_email_sent, id LIMIT %(number)s::int
"""
HOLD = "SELECT * FROM orders_order WHERE id = %(id)s FOR UPDATE NOWAIT"
WAIT = "SELECT * FROM orders_order WHERE id = %(id)s FOR UPDATE"
END_SECONDS = 1.0
PATIENT_SECONDS = 24 * 3600.0
# They wait long enough to be found. A superuser's session also turns off log_lock_waits, and
# client_connection_check_interval is off because each check would log the wait again.
PATIENCE = """
SET lock_timeout = 0; SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0;
SET client_connection_check_interval = 0;
SELECT set_config('log_lock_waits', 'off', false) FROM pg_roles WHERE rolname = current_user AND rolsuper
"""


class Chain:
    """The sessions, from `build` until each has its lock, or until `close`."""

    def __init__(self) -> None:
        self.sessions: list[psycopg.Connection] = []
        self.waiting: list[threading.Thread] = []

    @property
    def stands(self) -> bool:
        """True if any session still waits."""
        return any(thread.is_alive() for thread in self.waiting)

    def build(self, connection: psycopg.Connection) -> bool:
        """Lock three orders of the demo and let the sessions wait; False if the rows are missing or locked.

        Raises psycopg.OperationalError if the database is away.
        """
        self.close()
        parameters = {"domain": demo.DOMAIN, "number": len(NAMES) - 1}
        ids = [row[0] for row in connection.execute(ROWS, parameters).fetchall()]
        if len(ids) < len(NAMES) - 1:
            return False
        self.sessions = [open_session(name) for name in NAMES]
        try:
            self._hold(ids)
        except psycopg.errors.LockNotAvailable:
            self.close()
            return False
        self._wait(ids)
        return True

    def _hold(self, ids: Sequence[int]) -> None:
        for session, row_id in zip(self.sessions, ids, strict=False):
            psycopg.ClientCursor(session).execute(HOLD, {"id": row_id})

    def _wait(self, ids: Sequence[int]) -> None:
        self.waiting = [
            threading.Thread(target=wait, args=(session, row_id), daemon=True)
            for session, row_id in zip(self.sessions[1:], ids, strict=True)
        ]
        for thread in self.waiting:
            thread.start()

    def close(self) -> None:
        """End the sessions, the one that blocks all others first."""
        for session, thread in zip(self.sessions, [None, *self.waiting], strict=False):
            if thread is not None:
                end(thread, session)
            session.close()
        self.sessions, self.waiting = [], []


def end(thread: threading.Thread, session: psycopg.Connection) -> None:
    """Wait for the thread's lock, which is free by now, or cancel it if a person holds the row."""
    thread.join(END_SECONDS)
    if thread.is_alive():
        session.cancel_safe(timeout=END_SECONDS)
        thread.join(END_SECONDS)


def open_session(name: str) -> psycopg.Connection:
    """Open a session whose next statement begins a transaction. Raises psycopg.OperationalError."""
    session = connect_directly(f"rowlock:demo:{name}", answer_seconds=PATIENT_SECONDS)
    session.execute(PATIENCE)
    session.autocommit = False
    return session


def wait(session: psycopg.Connection, row_id: int) -> None:
    """Wait for the row, then release everything; runs in a thread."""
    with contextlib.suppress(psycopg.OperationalError, psycopg.InterfaceError):  # a person ended it, as intended
        psycopg.ClientCursor(session).execute(WAIT, {"id": row_id})
        session.rollback()


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
