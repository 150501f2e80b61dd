"""The director: loads the demo's rows, keeps the demo alive for a quarter of an hour, and serves requests of the pages.

It is one process with one session and an advisory lock, so a second director exits. Everything that it starts ends with
it: the server ends its sessions, the kernel its workers.
"""

import contextlib
import json
import logging
import random
import signal
import threading
import time
from collections.abc import Generator, Iterable
from datetime import timedelta
from typing import Any

import psycopg
from django.contrib.auth import get_user_model
from django.db import transaction
from django.utils import timezone
from psycopg import sql

from dashboard import demo
from dashboard.demo import control
from dashboard.lab import requests, runner
from dashboard.lab.drill import Victim
from dashboard.lab.requests import PRESETS_BY_NAME
from dashboard.lab.worker import Plan
from dashboard.models import DemoRow, LabRun
from dashboard.tasks import (
    call_carrier,
    charge_card,
    count_primes,
    nap,
    pack_parcel,
    pay_out,
    reach_busy_server,
    summarize_year,
    write_invoice,
    write_letter,
)
from orders import accounts
from orders.models import Account, Order
from tasks.compat import Task
from tasks.framework.declaration import PostgresTask
from tasks.models import ExpectedCommand, Queue
from tasks.operations.tokens import new_token
from tasks.support import audit, reading
from tasks.support.audit import Change, Who
from tasks.support.database import connect_directly, fetch, session_name

logger = logging.getLogger(__name__)

# Each session holds a row and waits for the row of the one before; the last one only waits.
NAMES = ("forgotten-psql", "shipping", "invoices", "support")

CHAIN_ROWS = """
SELECT id FROM orders_order WHERE customer_email LIKE '%%' || %(domain)s::text AND shipped_at IS NOT NULL
ORDER BY shipped_email_sent, id LIMIT %(number)s::int
"""
HOLD = "SELECT * FROM orders_order WHERE id = %(id)s FOR UPDATE NOWAIT"
WAIT_FOR_ROW = "SELECT * FROM orders_order WHERE id = %(id)s FOR UPDATE"
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
        ids = [row[0] for row in connection.execute(CHAIN_ROWS, parameters).fetchall()]
        if len(ids) < len(NAMES) - 1:
            return False
        self.sessions = [open_session(name) for name in NAMES]
        try:
            for session, row_id in zip(self.sessions, ids, strict=False):
                psycopg.ClientCursor(session).execute(HOLD, {"id": row_id})
        except psycopg.errors.LockNotAvailable:
            self.close()
            return False
        for session, row_id in zip(self.sessions[1:], ids, strict=True):
            self.waiting.append(threading.Thread(target=wait_for_row, args=(session, row_id), daemon=True))
            self.waiting[-1].start()
        return True

    def close(self) -> None:
        """End the sessions, the one that blocks all others first."""
        for session, thread in zip(self.sessions, [None, *self.waiting], strict=False):
            if thread is not None:
                thread.join(END_SECONDS)  # its row is free by now
                if thread.is_alive():  # unless a person holds the row
                    session.cancel_safe(timeout=END_SECONDS)
                    thread.join(END_SECONDS)
            session.close()
        self.sessions, self.waiting = [], []


def open_session(name: str) -> psycopg.Connection:
    """Open a session whose next statement begins a transaction. Raises psycopg.OperationalError."""
    session = connect_directly(session_name("demo", name), answer_seconds=PATIENT_SECONDS)
    session.execute(PATIENCE)
    session.autocommit = False
    return session


def wait_for_row(session: psycopg.Connection, row_id: int) -> None:
    """Wait for the row, then release everything; runs in a thread."""
    with contextlib.suppress(psycopg.OperationalError, psycopg.InterfaceError):  # a person ended it, as intended
        psycopg.ClientCursor(session).execute(WAIT_FOR_ROW, {"id": row_id})
        session.rollback()


CUSTOMERS = ("ada", "grace", "edsger")
TO_MAIL = (
    *CUSTOMERS, "barbara", "donald", "frances", "john", "margaret", "niklaus", "radia", "tim", "sophie",
)  # fmt: skip
UNKNOWN = "leslie"
OWNERS = {"ada": 300, "grace": 120, "edsger": 75}  # of accounts, with their first deposits
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
    make_accounts()
    # The crontab line of an hourly report was lost two days ago.
    since = timezone.now() - timedelta(days=2)
    ExpectedCommand.objects.get_or_create(
        name=demo.NIGHTLY, defaults={"every": timedelta(hours=1), "since": since, "succeeded_at": None}
    )
    task_ids = enqueue_all()
    list_ids(DemoRow.Kind.TASK, task_ids)
    return len(task_ids)


def list_ids(kind: DemoRow.Kind, ids: Iterable[int]) -> None:
    """List rows that the demo makes, in the same transaction."""
    DemoRow.objects.bulk_create(DemoRow(kind=kind, row_id=row_id, name="") for row_id in ids)


def list_names(kind: DemoRow.Kind, names: Iterable[str]) -> None:
    """List names that belong to the demo."""
    DemoRow.objects.bulk_create(DemoRow(kind=kind, row_id=0, name=name) for name in names)


def enqueue_all() -> list[int]:
    """Enqueue tasks that end in every way or wait for every reason. Returns their ids."""
    tomorrow = timezone.now() + timedelta(days=1)
    calls: Calls = [
        (count_primes, [[number * 1000] for number in range(1, 21)]),
        (nap, [[seconds / 2] for seconds in range(1, 5)]),
        (write_letter, [[name, number] for number in range(1, 5) for name in CUSTOMERS]),
        (reach_busy_server, [[]]),
        (call_carrier, [[number] for number in range(1, 5)]),
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


def make_accounts() -> None:
    """Make and list an account with entries for each of three owners, who cannot log in."""
    people = get_user_model().objects
    opened = []
    for name, balance in OWNERS.items():
        owner = people.create_user(f"{demo.PREFIX}{name}", f"{name}{demo.DOMAIN}", is_active=False)
        account = Account.objects.create(owner=owner)
        accounts.deposit(account.pk, balance)
        opened.append(account.pk)
        list_ids(DemoRow.Kind.USER, [owner.pk])
    accounts.withdraw(opened[0], 40)
    accounts.transfer(opened[0], opened[1], 25)
    list_ids(DemoRow.Kind.ACCOUNT, opened)


TICK_SECONDS = 0.1
TRICKLE_SECONDS = 0.5
SUMMARY_EVERY = 60  # of the trickle: twice a minute, so that a bar is mostly seen soon
CARRIER_EVERY = 20  # as fast as its rate allows, so that some wait
PATIENCE_SECONDS = 30.0  # for one of our workers to start and to get a task before others do
OFFERED = 3  # tasks at a time, because other workers may take some
PRESET = "double-click"  # three runs of a few seconds
DEMO = Who(demo.ACTOR, "command")

UNFINISHED = """
SELECT count(*) FILTER (WHERE status = 'READY') AS ready, count(*) FILTER (WHERE status = 'PROCESSING') AS processing
FROM (SELECT status FROM tasks_task
      WHERE queue_name = %(queue)s::text AND status IN ('READY', 'PROCESSING') LIMIT 100) AS unfinished
"""
Scene = Generator[None, None, None]  # advanced at each tick; it yields while it has to wait


class AlreadyDirected(Exception):
    """Another director runs the demo of this database."""


class Director:
    """Runs the scenes until its time is over or it is stopped."""

    def __init__(self, minutes: float = demo.MINUTES) -> None:
        self.ends_at = time.monotonic() + minutes * 60
        self.is_stopping = False
        self.chain = Chain()
        self.victims: dict[str, Victim] = {}
        self.scenes: list[Scene] = []
        self.is_killing = False
        self.trickled_at = 0.0
        self.trickled = 0

    def run(self) -> None:
        """Direct until the end. Raises AlreadyDirected, and psycopg.OperationalError if the session is lost."""
        with contextlib.closing(connect_directly(session_name("demo", "director"))) as self.connection:
            if not fetch(self.connection, control.TAKE)[0]["taken"]:
                raise AlreadyDirected
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: self.stop())
            try:
                self._direct()
            finally:
                self.chain.close()
                for victim in self.victims.values():
                    victim.end()

    def stop(self) -> None:
        self.is_stopping = True

    def _direct(self) -> None:
        channel = fetch(self.connection, control.CHANNEL)[0]["name"]
        self.connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        self.build_chain()
        self.scenes.append(self.first_scenes())
        self.start(demo.PARCELS)
        while not self.is_stopping and time.monotonic() < self.ends_at:
            # A list, because the connection serves nothing else while the generator runs.
            for notice in list(self.connection.notifies(timeout=TICK_SECONDS)):
                self.obey(notice.payload)
            self._trickle()
            self.scenes = [scene for scene in self.scenes if next(scene, "over") != "over"]

    def obey(self, payload: str) -> None:
        """Carry out a request; other notifications are ignored, because any session may send them."""
        try:
            said = json.loads(payload)
            request = control.Request(said["do"])
            who = Who(reading.name(said["actor"]), "page" if said["source"] == "page" else "command")
        except (ValueError, KeyError, TypeError):
            logger.warning("not a request to the demo: %.80r", payload)
            return
        if request is control.Request.STOP:
            self.stop()
        elif request is control.Request.CHAIN:
            self.build_chain()
        elif not self.is_killing:
            self.is_killing = True
            self.scenes.append(self.kill_a_worker(who))

    def build_chain(self) -> None:
        """Build the lock chain, unless sessions of the previous one still wait."""
        if not self.chain.stands and not self.chain.build(self.connection):
            logger.info("no chain: it needs three orders of the demo that nobody has locked")

    def _trickle(self) -> None:
        """Enqueue two tasks a second; now and then one of some seconds that reports its progress."""
        if time.monotonic() - self.trickled_at < TRICKLE_SECONDS:
            return
        self.trickled_at = time.monotonic()
        self.trickled += 1
        if self.trickled % SUMMARY_EVERY == SUMMARY_EVERY // 6:
            enqueue(summarize_year)
        elif self.trickled % CARRIER_EVERY == 0:
            enqueue(call_carrier, self.trickled)
        elif random.random() < 0.8:  # noqa: S311  nosec B311
            enqueue(count_primes, random.randrange(1000, 50_000))  # noqa: S311  nosec B311
        else:
            enqueue(nap, round(random.uniform(0.05, 0.6), 2))  # noqa: S311  nosec B311

    def first_scenes(self) -> Scene:
        """Kill a worker in the middle of a payout, then ask the lab, which keeps a worker busy for some seconds.

        No payout is lost while another one waits for a person.
        """
        if not self.unfinished(demo.PAYOUTS)["processing"]:
            victim = self.start(demo.PAYOUTS)
            if (yield from self.occupied(victim, pay_out)):
                self.victims.pop(victim.queue).kill()
        compare_once()

    def kill_a_worker(self, who: Who) -> Scene:
        """Kill a worker in the middle of a parcel, record it in the audit, and start another worker."""
        victim = self.victims.get(demo.PARCELS) or self.start(demo.PARCELS)
        if (yield from self.occupied(victim, pack_parcel)) and (at := victim.running(self.connection)):
            action = f"kill-worker worker={at['worker_id']} task={at['id']}"
            audit.record(self.connection, who, action, [Change(audit.queue(victim.queue))])
            victim.kill()
            self.start(demo.PARCELS)
        self.is_killing = False

    def start(self, queue: str) -> Victim:
        """Start a worker for this queue; must run in the main thread, with which the worker ends."""
        self.victims[queue] = Victim.start(queue)
        return self.victims[queue]

    def occupied(self, victim: Victim, task: "Task[Any, Any]") -> Generator[None, None, bool]:
        """Wait until the worker is in the middle of such a task, offering more if others take them.

        Returns False if that does not happen within PATIENCE_SECONDS.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not victim.running(self.connection):
            if time.monotonic() > deadline or not victim.is_alive():
                logger.warning("no worker of the demo got a task of %s within %d s", victim.queue, PATIENCE_SECONDS)
                return False
            if not any(self.unfinished(victim.queue).values()):
                for number in range(OFFERED):
                    enqueue(task, number)
            yield
        return True

    def unfinished(self, queue: str) -> dict[str, int]:
        """The number of `ready` and `processing` tasks of this queue, counted up to a hundred."""
        return fetch(self.connection, UNFINISHED, {"queue": queue})[0]


def compare_once() -> None:
    """Ask the lab for a first comparison, unless it has runs already or is off."""
    if runner.is_allowed() and not LabRun.objects.exists():
        preset = PRESETS_BY_NAME[PRESET]
        requests.request_runs([Plan(pattern, **preset.numbers) for pattern in preset.patterns], new_token(), DEMO)


def enqueue(task: "Task[Any, Any]", *args: object) -> None:
    """Enqueue one more task of the demo, and list it."""
    with transaction.atomic():
        list_ids(DemoRow.Kind.TASK, PostgresTask.of(task).enqueue_many([(list(args), {})]))
