"""Named locks in PostgreSQL: by a lease row whose holder's session is visible, or by a session advisory lock.

The rules are the SQL functions of tasks/migrations/0004_functions.py.
"""

import atexit
import os
import select
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from django.db import connections
from psycopg import sql

from tasks import conf
from tasks.exceptions import LockUnavailable
from tasks.locking.named.holder import Holder, Life, Waiter
from tasks.locking.named.renewal import Contender, refuse_cycle
from tasks.support.database import OURS, Connection, connect_directly, fetch, name_of_this_process, session_name

# In case the notification is lost (fault F9); behind a proxy there is none.
RECHECK_SECONDS = 5.0
POLL_SECONDS = 0.25

# Behind a proxy the session is not this client's own: its process id differs from the announced one.
OPEN = "SELECT rowlock_lock_class() AS class, rowlock_lock_channel() AS channel, pg_backend_pid() AS pid"
TAKE_PRESENCE = "SELECT pg_try_advisory_lock(%(class)s::int, hashtext(%(owner)s::text)) AS taken"
# The broken session or a waiter may still hold it for a moment; lock_timeout is one second.
RETAKE_PRESENCE = "SELECT pg_advisory_lock(%(class)s::int, hashtext(%(owner)s::text))"

LIMIT_WAIT = "SELECT set_config('lock_timeout', %(wait_ms)s::text, true)"
WATCH_PRESENCE = "SELECT pg_advisory_xact_lock_shared(%(class)s::int, hashtext(%(owner)s::text))"
WATCH_KEY = "SELECT pg_advisory_xact_lock_shared(rowlock_lock_key(%(name)s::text))"

# A worker keeps one idle session for its next lock, because connecting is the slowest step. Meanwhile it carries no
# lock's name and holds nothing. Other programs keep none: a program that ends, or a test that drops its database, must
# leave nothing behind.
KEEPING_PROCESSES = (f"{OURS}worker:", f"{OURS}lab:")
LET_GO = "SELECT pg_advisory_unlock_all(), set_config('application_name', 'rowlock:lock', false)"
END_SOON = "SET idle_session_timeout = '10s'"
KEEP = "RESET idle_session_timeout"
RENAME = "SELECT set_config('application_name', %(session_name)s::text, false)"

ACQUIRE = """
SELECT rowlock_lock_acquire(%(name)s::text, %(owner)s::text, make_interval(secs => %(ttl)s::float8),
    hostname => %(hostname)s::text, pid => %(pid)s::int, backend => %(backend)s::text,
    has_presence => %(has_presence)s::boolean) AS fence
"""
RENEW = """
SELECT rowlock_lock_renew(%(name)s::text, %(owner)s::text, %(fence)s::bigint,
    make_interval(secs => %(ttl)s::float8)) AS renewed
"""
RELEASE = "SELECT rowlock_lock_release(%(name)s::text, %(owner)s::text, %(fence)s::bigint) AS released"

HOLDERS = """
SELECT lock.name, lock.backend, coalesce(lock.owner, '') AS owner, lock.fence, lock.hostname, lock.pid,
    lock.acquired_at, lock.renewed_at, lock.expires_at,
    rowlock_lock_life(lock, rowlock_lock_presence(lock.owner) IN (SELECT rowlock_lock_presences()),
        (SELECT rowlock_epoch())) AS life,
    extract(epoch FROM clock_timestamp() - lock.acquired_at)::float8 AS held_seconds,
    extract(epoch FROM clock_timestamp() - lock.renewed_at)::float8 AS silent_seconds,
    extract(epoch FROM lock.expires_at - clock_timestamp())::float8 AS seconds_left
FROM tasks_lock AS lock
WHERE %(names)s::text[] IS NULL OR lock.name = ANY(%(names)s::text[])
ORDER BY lock.owner IS NULL, lock.acquired_at DESC LIMIT %(limit)s::int
"""

WAITERS = """
SELECT waiter.name, waiter.owner, waiter.hostname, waiter.pid, waiter.holds, waiter.since,
    extract(epoch FROM clock_timestamp() - waiter.since)::float8 AS waiting_seconds
FROM tasks_lockwaiter AS waiter
WHERE rowlock_lock_presence(waiter.owner) IN (SELECT rowlock_lock_presences())
ORDER BY waiter.since, waiter.id LIMIT %(limit)s::int
"""

# A new waiter checks for cycles with the existing ones. One enters at a time, so that only the last of a cycle finds
# it.
ENTER_ALONE = "SELECT pg_advisory_xact_lock(hashtext('rowlock:waiting'), rowlock_lock_class())"
SWEEP = """
DELETE FROM tasks_lockwaiter WHERE rowlock_lock_presence(owner) NOT IN (SELECT rowlock_lock_presences())
"""
ENTER = """
INSERT INTO tasks_lockwaiter (name, owner, hostname, pid, holds)
VALUES (%(name)s::text, %(owner)s::text, %(hostname)s::text, %(pid)s::int, %(holds)s::bigint[])
"""
LEAVE = "DELETE FROM tasks_lockwaiter WHERE owner = %(owner)s::text"

BARE_HOLDER = """
SELECT session.pid, coalesce(session.application_name, '') AS application_name,
    coalesce(host(session.client_addr), '') AS hostname
FROM pg_locks AS lock LEFT JOIN pg_stat_activity AS session USING (pid)
WHERE lock.locktype = 'advisory' AND lock.objsubid = 1 AND lock.granted
  AND lock.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND lock.classid::bigint = (rowlock_lock_key(%(name)s::text) >> 32 & 4294967295)
  AND lock.objid::bigint = (rowlock_lock_key(%(name)s::text) & 4294967295)
"""
TAKE_KEY = "SELECT pg_try_advisory_lock(rowlock_lock_key(%(name)s::text)) AS taken"
DROP_KEY = "SELECT pg_advisory_unlock(rowlock_lock_key(%(name)s::text))"
END_WHEN_IDLE = "SELECT set_config('idle_session_timeout', %(idle_ms)s::text, false)"


def holders(connection: Connection, names: Iterable[str] | None = None, *, limit: int | None = None) -> list[Holder]:
    """The locks with these names (None: all) with their holder or last holder; held ones first, then latest first."""
    params = {"names": None if names is None else list(names), "limit": limit}
    return [Holder(**{**row, "life": Life(row["life"])}) for row in fetch(connection, HOLDERS, params)]


def waiters(connection: Connection, *, limit: int | None = None) -> list[Waiter]:
    """Waiters for any lock, longest wait first."""
    rows = fetch(connection, WAITERS, {"limit": limit})
    return [Waiter(**{**row, "holds": frozenset(row["holds"])}) for row in rows]


class Spare:
    """The session that a worker keeps between two locks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: tuple[object, psycopg.Connection] | None = None

    def take(self, session_name: str) -> psycopg.Connection | None:
        """The kept session, renamed; None when there is none, it has died, or its settings or process differ."""
        connection = self._replace(None)
        if connection is None:
            return None
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
        if former := self._replace(connection):
            former.close()

    def close(self) -> None:
        if kept := self._replace(None):
            kept.close()

    def _replace(self, connection: psycopg.Connection | None) -> psycopg.Connection | None:
        """Keep this session; returns the former one if its process and its settings are ours.

        A fork must neither use nor close its parent's.
        """
        with self._lock:
            former, self._kept = self._kept, (_way(), connection) if connection else None
        return former[1] if former and former[0] == _way() else None


def _way() -> object:
    return os.getpid(), conf.get("DIRECT_DATABASE_URL"), repr(connections["default"].settings_dict)


spare = Spare()
atexit.register(spare.close)


class LeaseContender(Contender):
    """A lease in the row of the lock. Its session, in autocommit, is used by one thread at a time.

    `is_direct` is False behind a proxy: then the session can carry neither presence nor notifications.
    """

    backend = "lease"
    is_direct = False
    _class, _channel = 0, ""
    _connection: psycopg.Connection | None = None
    _holds_nothing = False  # so the session may be kept for another lock

    @property
    def connection(self) -> psycopg.Connection:
        """The live connection. Raises psycopg.OperationalError when it was lost."""
        if self._connection is None or self._connection.closed:
            raise psycopg.OperationalError("the session was lost")
        return self._connection

    @property
    def is_cut_off(self) -> bool:
        return self._connection is None or bool(self._connection.closed)

    def try_acquire(self) -> int | None:
        self._open()
        self.fence = self._fetch(ACQUIRE)["fence"]
        return self.fence

    def holder(self) -> Holder | None:
        found = holders(self.connection, [self.name])
        return found[0] if found and found[0].is_held else None

    def start_waiting(self, holds: Collection[int]) -> None:
        if not self.is_direct:
            return
        self._listen()
        with self.connection.transaction():
            self._fetch(ENTER_ALONE)
            self.connection.execute(SWEEP)
            refuse_cycle(self.name, holds, holders(self.connection), waiters(self.connection))
            self.connection.execute(ENTER, self._params(holds=list(holds)))

    def wait(self, seconds: float) -> None:
        if self.is_cut_off:
            self._reconnect()
            self._listen()
        holder = self.holder()
        if holder is not None and holder.life is not Life.MISSING:
            left = min(seconds, RECHECK_SECONDS, max(0.001, holder.seconds_left or RECHECK_SECONDS))
            self._wait_for(holder, left)

    def stop_waiting(self) -> None:
        if self.is_direct and not self.is_cut_off:
            self.connection.execute(LEAVE, {"owner": self.owner})
            self.connection.execute("UNLISTEN *")

    def renew(self) -> bool:
        if self.is_cut_off:
            self._reconnect()
        return bool(self._fetch(RENEW)["renewed"])

    def release(self) -> bool:
        if self.is_cut_off:
            self._reconnect()
        released = bool(self._fetch(RELEASE)["released"])
        self.connection.execute(LET_GO)  # ends presence at once; closing the session alone takes some milliseconds
        self._holds_nothing = self.is_direct and name_of_this_process().startswith(KEEPING_PROCESSES)
        return released

    def pause(self, seconds: float, wake_fd: int) -> None:
        """Return early also when the session breaks."""
        descriptors = [wake_fd] if self.is_cut_off else [wake_fd, self.connection.fileno()]
        if wake_fd in select.select(descriptors, [], [], max(0.0, seconds))[0] or self.is_cut_off:
            return
        try:
            for _ in self.connection.notifies(timeout=0):
                pass
        except psycopg.Error:
            self.close()

    def close(self) -> None:
        """End the session and all its locks; a worker's released session is kept for its next lock."""
        connection, self._connection = self._connection, None
        if connection is not None and self._holds_nothing and not connection.closed:
            spare.keep(connection)
        elif connection is not None:
            connection.close()

    @contextmanager
    def explained(self) -> Iterator[None]:
        try:
            yield
        except (psycopg.errors.UndefinedFunction, psycopg.errors.UndefinedTable) as error:
            raise LockUnavailable("The tables that keep locks are not there: run `manage.py migrate`.") from error
        except psycopg.Error as error:
            what = " ".join(str(error).split())
            raise LockUnavailable(
                f"The database that keeps the lock did not answer: {what}. Is it running and reachable? Then try again."
            ) from error

    def _open(self) -> None:
        """Connect and take a presence lock; choose another owner's name if its key is taken."""
        while self.is_cut_off:
            self._connect()
            if self.is_direct and not self._fetch(TAKE_PRESENCE)["taken"]:
                self.close()
                self.owner = self.new_owner()

    def _reconnect(self) -> None:
        """Connect again after a break, and take the presence lock under the same owner."""
        self._connect()
        if self.is_direct:
            self._fetch(RETAKE_PRESENCE)

    def _connect(self) -> None:
        self.close()
        self._holds_nothing = False
        name = session_name("lock", self.name, party=name_of_this_process())
        self._connection = spare.take(name) or connect_directly(name, connect_timeout=2)
        row = self._fetch(OPEN)
        self._class, self._channel = row["class"], row["channel"]
        self.is_direct = row["pid"] == self._connection.info.backend_pid

    def _listen(self) -> None:
        self.connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))

    def _wait_for(self, holder: Holder, seconds: float) -> None:
        if self.is_direct and holder.life is Life.ALIVE:
            self._watch(WATCH_PRESENCE, seconds, owner=holder.owner)
            return
        for notification in self.connection.notifies(timeout=seconds if self.is_direct else min(seconds, POLL_SECONDS)):
            if notification.payload == self.name:
                return

    def _watch(self, statement: str, seconds: float, **params: Any) -> None:
        """Wait in the server for another session's lock, at most `seconds`; the release wakes us at once."""
        try:
            with self.connection.transaction():
                self._fetch(LIMIT_WAIT, wait_ms=f"{max(1, int(seconds * 1000))}ms")
                self._fetch(statement, **params)
        except psycopg.errors.LockNotAvailable:
            return

    def _fetch(self, statement: str, **more: Any) -> dict[str, Any]:
        [row] = fetch(self.connection, statement, self._params(**more))
        return row

    def _params(self, **more: Any) -> dict[str, Any]:
        return {
            "name": self.name,
            "owner": self.owner,
            "fence": self.fence,
            "ttl": self.ttl,
            "hostname": self.hostname,
            "pid": self.pid,
            "backend": self.backend,
            "has_presence": self.is_direct,
            "class": self._class,
            **more,
        }


class AdvisoryContender(LeaseContender):
    """A session advisory lock, with a lease row for its fence, its holder and its waiters.

    The lock ends with its session, so a broken session is a lost lock (fault F5). The server ends the session of a
    holder that is silent for the ttl. Other programs may take `pg_advisory_lock(rowlock_lock_key(name))`.
    """

    backend = "advisory"

    def try_acquire(self) -> int | None:
        self._open()
        if not self.is_direct:
            raise LockUnavailable(
                "An advisory lock belongs to a database session, and a pooling proxy stands before this one: set "
                "DIRECT_DATABASE_URL to the same database past the proxy, or use the backend 'lease'."
            )
        if not self._fetch(TAKE_KEY)["taken"]:
            return None
        if super().try_acquire() is None:
            self._fetch(DROP_KEY)
        else:
            self._fetch(END_WHEN_IDLE, idle_ms=f"{int(self.ttl * 1000)}ms")
        return self.fence

    def holder(self) -> Holder | None:
        return super().holder() or self._bare_holder()

    def renew(self) -> bool:
        return not self.is_cut_off and super().renew()

    def release(self) -> bool:
        return not self.is_cut_off and super().release()

    def _wait_for(self, holder: Holder, seconds: float) -> None:
        if holder.backend == self.backend and holder.life is Life.ALIVE:
            self._watch(WATCH_KEY, seconds)
        else:
            super()._wait_for(holder, seconds)

    def _bare_holder(self) -> Holder | None:
        for row in fetch(self.connection, BARE_HOLDER, {"name": self.name}):
            owner = f"backend {row['pid']} {row['application_name']}".strip()
            return Holder(self.name, self.backend, Life.ALIVE, owner=owner, hostname=row["hostname"])
        return None
