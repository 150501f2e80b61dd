"""A chain of four sessions, each waiting for the one before; the first is idle in transaction. They change nothing."""

import contextlib
import logging
import threading
from collections.abc import Sequence

import psycopg

from dashboard import demo
from tasks.database import connect_directly

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
