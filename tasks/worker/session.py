"""The worker's own database session: its presence, what wakes it, and its way back after the session was lost."""

import logging
import select
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import psycopg
from psycopg import sql

from tasks import presence
from tasks.database import connect_directly, fetch
from tasks.exceptions import Convicted

logger = logging.getLogger(__name__)
T = TypeVar("T")
RETRY_FIRST_SECONDS = 0.05
RETRY_CAP_SECONDS = 5.0
LOST = (psycopg.OperationalError, psycopg.InterfaceError)
# The server takes no writes now (fault F17): connect again, the address may lead to another server by then.
READ_ONLY = psycopg.errors.ReadOnlySqlTransaction
# The session is well; somebody else was in the way.
IN_THE_WAY = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.QueryCanceled,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
)

# One idle worker is on duty and holds this lock; enqueuers share it until they commit, and notify only when they
# cannot have it. Neither 'mine' nor 'others' means that an enqueuer has not committed yet: look again soon.
TAKE_DUTY = """
SELECT CASE
    WHEN pg_try_advisory_lock(hashtext('rowlock:duty'), hashtext(current_schema())) THEN 'mine'
    WHEN NOT pg_try_advisory_lock_shared(hashtext('rowlock:duty'), hashtext(current_schema())) THEN 'others'
    WHEN pg_advisory_unlock_shared(hashtext('rowlock:duty'), hashtext(current_schema())) THEN 'nobody'
END AS duty
"""
# The lookouts of other supervisors sleep without knowing that nobody is on duty: enqueuers would wake none of them.
LEAVE_DUTY = """
SELECT pg_advisory_unlock(hashtext('rowlock:duty'), hashtext(current_schema())),
    pg_notify('rowlock_' || current_schema(), 'duty')
"""
UNLISTEN = "UNLISTEN *"


class Session:
    """One connection shared by the child's two threads under a lock; it holds the worker's presence."""

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id
        self.lock = threading.RLock()
        self.connection: psycopg.Connection | None = None
        self.is_presence_held = False
        self.is_settled = False
        self.is_read_only = False
        self.is_on_duty = False
        self.is_hearing = False  # it LISTENs, or does again as soon as there is a connection
        # Set whenever an error may have hidden the answer to a claim: rows may be ours that we do not know of.
        self.is_unsure = False
        self._read: Callable[[], None] | None = None
        self._retry_at = 0.0
        self._retry_seconds = RETRY_FIRST_SECONDS

    def open(self, register: Callable[[psycopg.Connection], None]) -> bool:
        """First connection: presence, then `register`; False when this id's presence key is taken."""
        self.connection = connect_directly(f"rowlock:worker:{self.worker_id}")
        self.is_presence_held = presence.take(self.connection, self.worker_id)
        if self.is_presence_held:
            register(self.connection)
            self._settle_in(self.connection)
        return self.is_presence_held

    def run(self, operation: Callable[[psycopg.Connection], T]) -> T:
        """Call `operation` with a live connection, under the lock. Raises psycopg.Error, or Convicted."""
        with self.lock:
            connection = self.ensure()
            try:
                return operation(connection)
            except psycopg.Error as error:
                self.note(error)
                raise

    def go_on(self, read: Callable[[], None]) -> None:
        """Something was sent whose answer is not waited for: `read` it before anything else is asked."""
        self._read = read

    def _read_answer(self) -> None:
        read, self._read = self._read, None
        if read is not None:
            try:
                read()
            except psycopg.Error as error:
                self.note(error)
                raise

    def ensure(self) -> psycopg.Connection:
        """The live connection, made anew when it was lost, its last answer read. Raises psycopg.Error, or Convicted."""
        with self.lock:
            self._read_answer()
            if self.connection is None or self.connection.closed or self.is_read_only:
                return self._reconnect()
            if not self.is_settled:
                self._settle_again(self.connection)
            return self.connection

    def note(self, error: psycopg.Error) -> None:
        """After an error an answer may be missing; when it means that the session is lost, forget the session.

        One that is only read-only keeps its presence until the next attempt to connect: were it given up while we
        wait, the first who can write again would take us for dead.
        """
        self.is_unsure = True
        if isinstance(error, READ_ONLY):
            self.is_read_only = True
        elif isinstance(error, LOST) and not isinstance(error, IN_THE_WAY):
            self.forget()

    def forget(self) -> None:
        """Close what may be left of the session."""
        with self.lock:
            if self.connection is not None:
                self.connection.close()
            self.connection = self._read = None
            self.is_presence_held = self.is_settled = self.is_read_only = self.is_on_duty = False
            self.is_unsure = True

    def retry_in(self) -> float:
        """Seconds until the next attempt to connect is due; each failure doubles it."""
        return max(0.0, self._retry_at - time.monotonic())

    def take_duty(self) -> str:
        """Be the idle worker whom enqueuers notify: `mine`, `others` or `nobody` (ask again soon)."""
        duty: str = self.run(lambda connection: fetch(connection, TAKE_DUTY)[0]["duty"])
        self.is_on_duty = duty == "mine"
        return duty

    def hear(self) -> None:
        """Wait for notifications from now on."""
        self.run(self._listen)
        self.is_hearing = True

    def hear_no_more(self) -> None:
        """Leave the duty to a lookout of another supervisor, and be woken no more. Errors are noted and logged."""
        self.is_hearing = False
        try:
            if self.is_on_duty:
                self.run(lambda connection: connection.execute(LEAVE_DUTY))
            self.run(lambda connection: connection.execute(UNLISTEN))
        except psycopg.Error as error:
            logger.warning("worker %s could not leave the duty: %s", self.worker_id, str(error).strip())
        self.is_on_duty = False

    def wait(self, seconds: float, other: int) -> bool:
        """Wait for a notification, for the file descriptor `other`, or for `seconds`. Whether `other` is readable.

        One that came together with the answer to a query was read with it: the socket is silent about it.
        """
        if self.drain():
            return False
        readable = select.select([*self.descriptors(), other], [], [], max(0.0, seconds))[0]
        if set(readable) - {other}:
            self._hear()
        return other in readable

    def drain(self) -> bool:
        """Read what the server sent unasked, and so notice at once when it has closed the session.

        Gives whether there was a notification.
        """
        with self.lock:
            if self.connection is None:
                return False
            try:
                self._read_answer()
                return bool(list(self.connection.notifies(timeout=0)))
            except psycopg.Error as error:
                self.note(error)
                return False

    def _hear(self) -> None:
        """Read the notification that has come, before it meets an answer; the short way, as a task waits for us."""
        with self.lock:
            if self.connection is None:
                return
            try:
                self.connection.pgconn.consume_input()
                while self.connection.pgconn.notifies():
                    pass
            except psycopg.Error as error:
                self.note(error)

    def has_news(self) -> bool:
        """Whether the server sent something: an answer, a notification, or the end of the session."""
        descriptors = self.descriptors()
        return self._read is not None or bool(descriptors and select.select(descriptors, [], [], 0)[0])

    def descriptors(self) -> list[int]:
        """What is readable when the server sends something unasked."""
        connection = self.connection
        return [] if connection is None or connection.closed else [connection.fileno()]

    def _reconnect(self) -> psycopg.Connection:
        if self.retry_in():
            raise psycopg.OperationalError("the database is not usable yet; the next attempt is due in a moment")
        self.forget()
        try:
            self.connection = connect_directly(f"rowlock:worker:{self.worker_id}")
            self._settle_in(self.connection)
        except psycopg.Error as error:
            self.is_read_only = isinstance(error, READ_ONLY)
            if not self.is_read_only:
                self.forget()
            self._retry_at = time.monotonic() + self._retry_seconds
            self._retry_seconds = min(RETRY_CAP_SECONDS, 2 * self._retry_seconds)
            raise
        self._retry_seconds = RETRY_FIRST_SECONDS
        logger.info("worker %s is connected again", self.worker_id)
        return self.connection

    def _settle_again(self, connection: psycopg.Connection) -> None:
        try:
            self._settle_in(connection)
        except psycopg.Error as error:
            self.note(error)
            raise

    def _settle_in(self, connection: psycopg.Connection) -> None:
        """Hold presence under the same id, unless convicted meanwhile; hear what was heard.

        Our own former session may hold the lock yet: it is ended, and if that takes longer, the next call tries again.
        """
        self.is_presence_held = self.is_presence_held or presence.take_again(connection, self.worker_id)
        if self.is_presence_held and not presence.confirm(connection, self.worker_id):
            raise Convicted(f"Worker {self.worker_id} was declared dead while its session was lost.")
        if self.is_hearing:
            self._listen(connection)
        self.is_settled = self.is_presence_held

    @staticmethod
    def _listen(connection: psycopg.Connection) -> None:
        schema = fetch(connection, "SELECT current_schema() AS name")[0]["name"]
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(f"rowlock_{schema}")))
