"""Staged scenes of sessions that wait for each other, each really waiting, as PostgreSQL itself says."""

import contextlib
import threading
from collections.abc import Iterator, Sequence

import psycopg
from django.contrib.auth.models import User

from orders.models import Account, Order
from tests.sessions import session, wait_until_blocked

ROW = "SELECT 1 FROM {} WHERE id = %s FOR UPDATE"
LOCK_ACCOUNT, LOCK_ORDER = ROW.format("orders_account"), ROW.format("orders_order")
TABLE = "LOCK TABLE orders_entry IN ACCESS EXCLUSIVE MODE"
SWEEP = "SELECT pg_advisory_lock(hashtext('rowlock:sweep'), hashtext(current_schema()))"
# A browser looks at a scene for longer than other tests do.
PATIENCE = "-c statement_timeout=60s -c idle_in_transaction_session_timeout=90s"


class Scene(contextlib.ExitStack):
    """Sessions by name; all end with the scene, those that wait first."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions: dict[str, psycopg.Connection] = {}
        self.pids: dict[str, int] = {}

    def pid(self, name: str) -> int:
        return self.pids[name]

    def opened(self, name: str, **params: object) -> psycopg.Connection:
        """A session with this application name."""
        conn = self.sessions[name] = self.enter_context(session(name, **{"options": PATIENCE, **params}))
        self.pids[name] = conn.info.backend_pid
        return conn

    def holding(self, name: str, statement: str, parameters: Sequence[object] = ()) -> psycopg.Connection:
        """A session that has run the statement in a transaction which stays open."""
        conn = self.sessions.get(name) or self.opened(name)
        conn.execute(statement, parameters)
        return conn

    def waiting(self, name: str, statement: str, parameters: Sequence[object] = ()) -> psycopg.Connection:
        """A session that waits in the statement until the scene ends, or somebody signals it."""
        conn = self.sessions.get(name) or self.opened(name)
        thread = threading.Thread(target=_wait_in_vain, args=(conn, statement, parameters))
        thread.start()
        self.callback(thread.join, 10)
        self.callback(_cancel, conn)
        wait_until_blocked(conn.info.backend_pid)
        return conn


def _wait_in_vain(conn: psycopg.Connection, statement: str, parameters: Sequence[object]) -> None:
    with contextlib.suppress(psycopg.OperationalError):
        conn.execute(statement, parameters)


def _cancel(conn: psycopg.Connection) -> None:
    with contextlib.suppress(psycopg.OperationalError):
        conn.cancel_safe()


@contextlib.contextmanager
def staged() -> Iterator[tuple[Scene, Account]]:
    """Six sessions in one chain over a row, its tuple lock, an advisory lock and a table:

    psql ← worker (row) ← transfer (tuple); worker ← recovery (advisory) ← report, web (table).
    """
    account = Account.objects.create(owner=User.objects.create_user("owner"))
    with Scene() as scene:
        scene.holding("psql", LOCK_ACCOUNT, [account.pk])
        scene.holding("rowlock:worker:7f", SWEEP)
        scene.holding("rowlock:cmd:recover_tasks", TABLE)
        scene.waiting("rowlock:worker:7f", LOCK_ACCOUNT, [account.pk])
        scene.waiting("rowlock:cmd:transfer", LOCK_ACCOUNT, [account.pk])
        scene.waiting("rowlock:cmd:recover_tasks", SWEEP)
        scene.waiting("report", "SELECT count(*) FROM orders_entry")
        scene.waiting("rowlock:web", "INSERT INTO orders_entry (account_id, amount) VALUES (%s, 1)", [account.pk])
        yield scene, account


@contextlib.contextmanager
def queue_for_one_row(waiters: int, bystanders: int) -> Iterator[Scene]:
    """So many sessions that wait for one order's row in a queue, and so many that do nothing."""
    order = Order.objects.create(customer_email="a@example.test")
    with Scene() as scene:
        scene.holding("psql", LOCK_ORDER, [order.pk])
        for number in range(bystanders):
            scene.opened(f"idle {number}")
        for number in range(waiters):
            scene.waiting(f"waiter {number}", LOCK_ORDER, [order.pk])
        yield scene
