"""The worker's own database session: presence, lease, notifications, and the way back after the session was lost."""

import logging
import random
import select
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import psycopg
from psycopg import sql

from tasks import conf
from tasks.diagnosis import lock_holders
from tasks.exceptions import Convicted
from tasks.queue import presence
from tasks.support.database import connect_directly, fetch, session_name
from tasks.worker.shared_state import SharedState

logger = logging.getLogger(__name__)
T = TypeVar("T")
RETRY_FIRST_SECONDS = 0.05
RETRY_CAP_SECONDS = 2.0
# Of each server in the address, the first time; a later attempt is more patient.
CONNECT_SECONDS = 2
# A server that is frozen closes nothing, so its sessions have to be given up before another takes its place: Patroni
# waits for 20 s or more.
STATEMENT_SECONDS, ANSWER_SECONDS = 10, 12.0
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
# cannot have it. 'nobody': an enqueuer has not committed yet, so ask again soon.
TAKE_DUTY = """
SELECT CASE
    WHEN pg_try_advisory_lock(hashtext('rowlock:duty'), hashtext(current_schema())) THEN 'mine'
    WHEN NOT pg_try_advisory_lock_shared(hashtext('rowlock:duty'), hashtext(current_schema())) THEN 'others'
    WHEN pg_advisory_unlock_shared(hashtext('rowlock:duty'), hashtext(current_schema())) THEN 'nobody'
END AS duty
"""
LEAVE_DUTY = "SELECT pg_advisory_unlock(hashtext('rowlock:duty'), hashtext(current_schema()))"


class Session:
    """One connection that holds the worker's presence; both threads of the worker process use it, one at a time."""

    def __init__(self, worker_id: str, state: SharedState) -> None:
        self.worker_id = worker_id
        self.state = state
        self.lease_seconds: float = conf.get("LEASE_SECONDS")
        self._lock = threading.RLock()
        self.connection: psycopg.Connection | None = None
        self.is_ready = False  # presence is held and confirmed
        self.epoch = ""  # of the latest session, see `tasks.queue.presence`
        self.is_read_only = False
        self.is_on_duty = False
        self.is_listening = False  # or does again as soon as there is a connection
        # An error may have hidden the answer to a claim: rows may be ours that we do not know of.
        self.is_unsure = False
        self._read: Callable[[], None] | None = None
        self._retry_at = 0.0
        self._retry_seconds = RETRY_FIRST_SECONDS

    def open(self, register: Callable[[psycopg.Connection], None]) -> bool:
        """First connection: presence, then `register`; False when this id's presence key is taken."""
        self.connection = connect(self.worker_id)
        if not presence.take(self.connection, self.worker_id):
            return False
        register(self.connection)
        self._prepare(self.connection)
        return True

    def run(self, operation: Callable[[psycopg.Connection], T]) -> T:
        """Call `operation` with a live connection, under the lock. Raises psycopg.Error, or Convicted."""
        with self._lock:
            connection = self.ensure()
            try:
                return operation(connection)
            except psycopg.Error as error:
                self._note(error)
                raise

    def told(self, error: psycopg.Error) -> str:
        """The error in one line, with the holder of the lock that it met."""
        with self._lock:
            return lock_holders.told(self.connection, error)

    def ensure(self) -> psycopg.Connection:
        """The live connection, made anew when it was lost, its last answer read. Raises psycopg.Error, or Convicted."""
        with self._lock:
            try:
                self._read_answer()
                connection = self.connection
                if connection is not None and not connection.closed and not self.is_read_only:
                    if not self.is_ready:
                        self._prepare(connection)
                    return connection
            except psycopg.Error as error:
                self._note(error)
                raise
            return self._reconnect()

    def _reconnect(self) -> psycopg.Connection:
        if self.retry_in():
            raise psycopg.OperationalError("the database is not usable yet; the next attempt is due in a moment")
        self.forget()
        try:
            self.connection = connect(self.worker_id, CONNECT_SECONDS + int(self._retry_seconds))
            self._prepare(self.connection)
        except psycopg.Error as error:
            self.is_read_only = isinstance(error, READ_ONLY)
            if not self.is_read_only:
                self.forget()
            # At random, so that hundreds of workers do not all come back at the same moment.
            self._retry_at = time.monotonic() + self._retry_seconds * random.uniform(0.5, 1)  # noqa: S311
            self._retry_seconds = min(RETRY_CAP_SECONDS, 2 * self._retry_seconds)
            raise
        self._retry_seconds = RETRY_FIRST_SECONDS
        logger.info("worker %s is connected again", self.worker_id)
        return self.connection

    def _prepare(self, connection: psycopg.Connection) -> None:
        """Take presence under the same id, unless convicted meanwhile, and listen again.

        A former session of this worker may still hold the lock. It is ended; the next call tries again.
        """
        if not presence.take_again(connection, self.worker_id):
            return
        if not presence.confirm(connection, self.worker_id):
            raise Convicted(f"Worker {self.worker_id} was declared dead while its session was lost.")
        self.epoch = presence.epoch(connection)
        if self.is_listening:
            listen(connection, "rowlock")
        self.is_ready = True

    def _note(self, error: psycopg.Error) -> None:
        """Note that an answer may be missing, and forget the session when the error means that it is lost.

        A session that is only read-only keeps its presence until the next attempt to connect. Otherwise the first
        worker that can write again would take this one for dead.
        """
        self.is_unsure = True
        if isinstance(error, READ_ONLY):
            self.is_read_only = True
        elif isinstance(error, LOST) and not isinstance(error, IN_THE_WAY):
            self.forget()

    def forget(self) -> None:
        """Close what may be left of the session."""
        with self._lock:
            if self.connection is not None:
                self.connection.close()
            self.connection = self._read = None
            self.is_ready = self.is_read_only = self.is_on_duty = False
            self.is_unsure = True

    def retry_in(self) -> float:
        """Seconds until the next attempt to connect is due; each failure doubles it."""
        return max(0.0, self._retry_at - time.monotonic())

    def keep_lease(self, connection: psycopg.Connection) -> None:
        """Renew the lease when the supervisor is late with it. Raises Convicted."""
        if self.state.is_lease_fresh(self.lease_seconds / 2):
            return
        if not presence.beat(connection, [self.worker_id]):
            raise Convicted(f"Worker {self.worker_id} was declared dead: it was silent for longer than its lease.")
        self.state.renew_lease()

    def read_later(self, read: Callable[[], None]) -> None:
        """Leave the answer of a statement that was sent for later: `read` is called before anything else is asked."""
        self._read = read

    def _read_answer(self) -> None:
        read, self._read = self._read, None
        if read is not None:
            read()

    # Notifications.

    def take_duty(self) -> str:
        """Be the idle worker whom enqueuers notify: `mine`, `others` or `nobody` (ask again soon)."""
        duty: str = self.run(lambda connection: fetch(connection, TAKE_DUTY)[0]["duty"])
        self.is_on_duty = duty == "mine"
        return duty

    def listen(self) -> None:
        """Receive notifications from now on."""
        self.run(lambda connection: listen(connection, "rowlock"))
        self.is_listening = True

    def stop_listening(self) -> bool:
        """Leave the duty, and receive no notifications. Errors are logged.

        True if this worker was on duty. Somebody must know then: enqueuers wake no leader.
        """
        was_on_duty = self.is_on_duty
        self.is_listening = False
        try:
            if self.is_on_duty:
                self.run(lambda connection: connection.execute(LEAVE_DUTY))
            self.run(lambda connection: connection.execute("UNLISTEN *"))
        except psycopg.Error as error:
            logger.warning("worker %s could not leave the duty: %s", self.worker_id, str(error).strip())
        self.is_on_duty = False
        return was_on_duty

    def wait(self, seconds: float, other: int) -> tuple[set[str], bool]:
        """Wait for a notification, for the file descriptor `other`, or for `seconds`.

        Returns the payloads, and True if `other` is readable. A notification that came together with the answer to a
        query was read with it: the socket is silent about it.
        """
        if payloads := self.drain():
            return payloads, False
        readable = readable_within([*self.descriptors(), other], seconds)
        with self._lock:
            if self.connection is not None and readable - {other}:
                try:  # without the generator of `drain`: a task waits for us
                    self.connection.pgconn.consume_input()
                    while notification := self.connection.pgconn.notifies():
                        payloads.add(notification.extra.decode())
                except psycopg.Error as error:
                    self._note(error)
        return payloads, other in readable

    def drain(self) -> set[str]:
        """Read what the server sent unasked, and so notice at once when it has closed the session.

        Returns the payloads of its notifications.
        """
        with self._lock:
            if self.connection is None:
                return set()
            try:
                self._read_answer()
                return {notification.payload for notification in self.connection.notifies(timeout=0)}
            except psycopg.Error as error:
                self._note(error)
                return set()

    def has_input(self) -> bool:
        """True if the server sent something: an answer, a notification, or the end of the session."""
        return self._read is not None or bool(readable_within(self.descriptors(), 0.0))

    def descriptors(self) -> list[int]:
        """The file descriptor that is readable when the server sends something unasked, if there is a session."""
        connection = self.connection
        return [] if connection is None or connection.closed else [connection.fileno()]


def connect(worker_id: str, connect_timeout: int = CONNECT_SECONDS) -> psycopg.Connection:
    """A session of this worker, given up once it is silent. Raises psycopg.OperationalError."""
    name = session_name("worker", worker_id)
    connection = connect_directly(name, connect_timeout=connect_timeout, answer_seconds=ANSWER_SECONDS)
    connection.execute(f"SET statement_timeout = '{STATEMENT_SECONDS}s'")
    return connection


def readable_within(descriptors: Iterable[int], seconds: float) -> set[int]:
    """Return the readable ones after at most so many seconds. `select` fails once a process has a thousand."""
    waiting = select.poll()
    for descriptor in descriptors:
        waiting.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in waiting.poll(max(0.0, seconds) * 1000)}


def listen(connection: psycopg.Connection, prefix: str) -> None:
    """Receive the notifications of this schema's channel, which is named prefix_schema."""
    schema = fetch(connection, "SELECT current_schema() AS name")[0]["name"]
    connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(f"{prefix}_{schema}")))
