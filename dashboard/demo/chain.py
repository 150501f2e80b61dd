"""Four sessions of which each waits for the one before: the first forgot its transaction. They change nothing."""

import contextlib
import logging
import threading
from collections.abc import Sequence

import psycopg

from dashboard import demo
from tasks.database import connect_directly

logger = logging.getLogger(__name__)
# Innermost first: each holds a row and waits for that of the one before; the last one only waits.
NAMES = ("forgotten-psql", "shipping", "invoices", "support")

ROWS = """
SELECT id FROM orders_order WHERE customer_email LIKE '%%' || %(domain)s::text AND shipped_at IS NOT NULL
ORDER BY shipped_email_sent, id LIMIT %(number)s::int
"""
HOLD = "SELECT * FROM orders_order WHERE id = %(id)s FOR UPDATE NOWAIT"
WAIT = "SELECT * FROM orders_order WHERE id = %(id)s FOR UPDATE"
END_SECONDS = 1.0
PATIENT_SECONDS = 24 * 3600.0
# Somebody is to find them, so they wait longer than our other sessions would. The log of the server need not tell of
# them, as far as this role may say so; each check of the connection would have the wait logged again.
PATIENCE = """
SET lock_timeout = 0; SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0;
SET client_connection_check_interval = 0;
SELECT set_config('log_lock_waits', 'off', false) FROM pg_roles WHERE rolname = current_user AND rolsuper
"""


class Chain:
    """The sessions, from the build until each has got what it waited for, or `close`."""

    def __init__(self) -> None:
        self.sessions: list[psycopg.Connection] = []
        self.waiting: list[threading.Thread] = []

    @property
    def stands(self) -> bool:
        """Whether anybody still waits in it."""
        return any(thread.is_alive() for thread in self.waiting)

    def build(self, connection: psycopg.Connection) -> bool:
        """Takes three orders of the demo and lets the sessions wait; False when the rows are not to be had.

        Raises psycopg.OperationalError when the database is away.
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
        """Ends the sessions, the one that blocks all others first; then nobody waits any more."""
        for session, thread in zip(self.sessions, [None, *self.waiting], strict=False):
            if thread is not None:
                end(thread, session)
            session.close()
        self.sessions, self.waiting = [], []


def end(thread: threading.Thread, session: psycopg.Connection) -> None:
    """Waits for what the thread waits for, which is free by now; or cancels it, where a person holds the row."""
    thread.join(END_SECONDS)
    if thread.is_alive():
        session.cancel_safe(timeout=END_SECONDS)
        thread.join(END_SECONDS)


def open_session(name: str) -> psycopg.Connection:
    """A session with a transaction from its next statement on. Raises psycopg.OperationalError."""
    session = connect_directly(f"rowlock:demo:{name}", answer_seconds=PATIENT_SECONDS)
    session.execute(PATIENCE)
    session.autocommit = False
    return session


def wait(session: psycopg.Connection, row_id: int) -> None:
    """Waits for the row in a thread of its own, and lets go of everything once it has it."""
    with contextlib.suppress(psycopg.OperationalError, psycopg.InterfaceError):  # a person ended it: that is the point
        psycopg.ClientCursor(session).execute(WAIT, {"id": row_id})
        session.rollback()
