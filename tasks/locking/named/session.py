"""A party's database session for a named lock: its presence lock, its wake-ups, and its reconnection."""

import atexit
import os
import select
import threading
from typing import Any

import psycopg
from django.db import connections
from psycopg import sql

from tasks import conf
from tasks.support.database import OURS, connect_directly, fetch, name_of_this_process, session_name

# Behind a proxy the session is not this client's own: its process id differs from the announced one.
OPEN = "SELECT rowlock_lock_class() AS class, rowlock_lock_channel() AS channel, pg_backend_pid() AS pid"

TAKE_PRESENCE = "SELECT pg_try_advisory_lock(%(class)s::int, hashtext(%(owner)s::text)) AS taken"
# The broken session or a waiter may still hold it for a moment; lock_timeout is one second.
RETAKE_PRESENCE = "SELECT pg_advisory_lock(%(class)s::int, hashtext(%(owner)s::text))"

# A worker keeps one idle session for its next lock, because connecting is the slowest step. Meanwhile it carries no
# lock's name and holds nothing. Other programs keep none: a program that ends, or a test that drops its database, must
# leave nothing behind.
KEEPING_PROCESSES = (f"{OURS}worker:", f"{OURS}lab:")
LET_GO = "SELECT pg_advisory_unlock_all(), set_config('application_name', 'rowlock:lock', false)"
END_SOON = "SET idle_session_timeout = '10s'"
KEEP = "RESET idle_session_timeout"
RENAME = "SELECT set_config('application_name', %(session_name)s::text, false)"

LIMIT_WAIT = "SELECT set_config('lock_timeout', %(wait_ms)s::text, true)"
WATCH_PRESENCE = "SELECT pg_advisory_xact_lock_shared(%(class)s::int, hashtext(%(owner)s::text))"
WATCH_KEY = "SELECT pg_advisory_xact_lock_shared(rowlock_lock_key(%(name)s::text))"


class Spare:
    """The session that a worker keeps between two locks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: tuple[object, psycopg.Connection] | None = None

    def take(self, session_name: str) -> psycopg.Connection | None:
        """The kept session, renamed; None when there is none, it has died, or its settings or process differ."""
        with self._lock:
            kept, self._kept = self._kept, None
        if kept is None or kept[0] != self._way():
            return None
        connection = kept[1]
        try:
            connection.execute(KEEP)
            fetch(connection, RENAME, {"session_name": session_name})
        except psycopg.Error:  # the server has ended it
            connection.close()
            return None
        return connection

    def keep(self, connection: psycopg.Connection) -> None:
        """Keep an idle session, and close the one kept before."""
        try:
            connection.execute(END_SOON)
        except psycopg.Error:
            connection.close()
            return
        with self._lock:
            former, self._kept = self._kept, (self._way(), connection)
        if former is not None and former[0] == self._way():
            former[1].close()

    def close(self) -> None:
        with self._lock:
            kept, self._kept = self._kept, None
        if kept is not None and kept[0] == self._way():
            kept[1].close()

    @staticmethod
    def _way() -> object:
        """Process and connection settings of the session: a fork must not use its parent's."""
        return os.getpid(), conf.get("DIRECT_DATABASE_URL"), repr(connections["default"].settings_dict)


spare = Spare()
atexit.register(spare.close)


class LockSession:
    """One connection in autocommit, used by one thread at a time.

    `is_direct` is False behind a proxy: then the session can carry neither presence nor notifications.
    """

    def __init__(self, name: str, owner: str) -> None:
        self.name = name
        self.owner = owner
        self.is_direct = False
        self._class = 0
        self._channel = ""
        self._connection: psycopg.Connection | None = None
        self._holds_nothing = False

    @property
    def connection(self) -> psycopg.Connection:
        """The live connection. Raises psycopg.OperationalError when it was lost."""
        if self._connection is None or self._connection.closed:
            raise psycopg.OperationalError("the session was lost")
        return self._connection

    @property
    def is_lost(self) -> bool:
        return self._connection is None or bool(self._connection.closed)

    def open(self) -> bool:
        """Connect and take the presence lock; False when it is taken: choose another owner."""
        self._connect()
        return not self.is_direct or self.fetch(TAKE_PRESENCE)[0]["taken"]

    def reopen(self) -> None:
        """Connect again after a break, and take the presence lock under the same owner."""
        self._connect()
        if self.is_direct:
            self.fetch(RETAKE_PRESENCE)

    def fetch(self, statement: str, **params: Any) -> list[dict[str, Any]]:
        """The rows of one statement; the parameters `class`, `owner` and `name` are filled in."""
        known = {"class": self._class, "owner": self.owner, "name": self.name}
        return fetch(self.connection, statement, {**known, **params})

    def listen(self) -> None:
        self.connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))

    def unlisten(self) -> None:
        self.connection.execute("UNLISTEN *")

    def await_release(self, seconds: float) -> None:
        """Wait until the release of this lock is announced, at most `seconds`."""
        for notification in self.connection.notifies(timeout=seconds):
            if notification.payload == self.name:
                return

    def watch(self, statement: str, seconds: float, **params: Any) -> None:
        """Wait in the server for another session's lock, at most `seconds`; the release wakes us at once."""
        try:
            with self.connection.transaction():
                self.fetch(LIMIT_WAIT, wait_ms=f"{max(1, int(seconds * 1000))}ms")
                self.fetch(statement, **params)
        except psycopg.errors.LockNotAvailable:
            return

    def pause(self, seconds: float, wake_fd: int) -> None:
        """Wait until `wake_fd` is readable, the session breaks, or `seconds` are over."""
        descriptors = [wake_fd] if self.is_lost else [wake_fd, self.connection.fileno()]
        if wake_fd in select.select(descriptors, [], [], max(0.0, seconds))[0] or self.is_lost:
            return
        try:
            for _ in self.connection.notifies(timeout=0):
                pass
        except psycopg.Error:
            self.close()

    def let_go(self) -> None:
        """End presence at once; closing the session alone takes some milliseconds."""
        self.connection.execute(LET_GO)
        self._holds_nothing = self.is_direct and name_of_this_process().startswith(KEEPING_PROCESSES)

    def close(self) -> None:
        """End the session and all its locks; a worker's released session is kept for its next lock."""
        connection, self._connection = self._connection, None
        if connection is not None and self._holds_nothing and not connection.closed:
            spare.keep(connection)
        elif connection is not None:
            connection.close()

    def _connect(self) -> None:
        self.close()
        self._holds_nothing = False
        name = session_name("lock", self.name, party=name_of_this_process())
        self._connection = spare.take(name) or connect_directly(name, connect_timeout=2)
        [row] = fetch(self._connection, OPEN)
        self._class, self._channel = row["class"], row["channel"]
        self.is_direct = row["pid"] == self._connection.info.backend_pid
