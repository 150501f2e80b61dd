"""Named locks in PostgreSQL: by a lease row whose holder's session is visible, or by a session advisory lock.

The rules are the SQL functions of tasks/migrations/0004_functions.py.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from tasks.exceptions import LockCycle, LockUnavailable
from tasks.locking.named.holder import Holder, Life, Waiter
from tasks.locking.named.renewal import Contender, cycle_sentence, find_cycle
from tasks.locking.named.session import WATCH_KEY, WATCH_PRESENCE, LockSession
from tasks.support.database import Connection, fetch

# In case the notification is lost (fault F9); behind a proxy there is none.
RECHECK_SECONDS = 5.0
POLL_SECONDS = 0.25

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
    lock.acquired_at, lock.renewed_at, lock.expires_at, lock.released_at,
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
WHERE (%(names)s::text[] IS NULL OR waiter.name = ANY(%(names)s::text[]))
  AND rowlock_lock_presence(waiter.owner) IN (SELECT rowlock_lock_presences())
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


def waiters(connection: Connection, names: Iterable[str] | None = None, *, limit: int | None = None) -> list[Waiter]:
    """Waiters for the locks with these names (None: any), longest wait first."""
    params = {"names": None if names is None else list(names), "limit": limit}
    return [Waiter(**{**row, "holds": frozenset(row["holds"])}) for row in fetch(connection, WAITERS, params)]


class LeaseContender(Contender):
    """A lease in the row of the lock, on its own session."""

    backend = "lease"

    def __init__(self, name: str, ttl: float) -> None:
        super().__init__(name, ttl)
        self.session = LockSession(name, self.owner)

    def try_acquire(self) -> int | None:
        with _explained():
            self._open()
            self.fence = self._fetch(ACQUIRE)["fence"]
        return self.fence

    def holder(self) -> Holder | None:
        with _explained():
            found = holders(self.session.connection, [self.name])
        return found[0] if found and found[0].is_held else None

    def start_waiting(self, holds: Collection[int]) -> None:
        with _explained():
            if not self.session.is_direct:
                return
            self.session.listen()
            with self.session.connection.transaction():
                self._fetch(ENTER_ALONE)
                self.session.connection.execute(SWEEP)
                self._refuse_cycle(holds)
                self.session.connection.execute(ENTER, self._params(holds=list(holds)))

    def wait(self, seconds: float) -> None:
        with _explained():
            if self.session.is_lost:
                self.session.reopen()
                self.session.listen()
            holder = self.holder()
            if holder is None or holder.life is Life.MISSING:
                return
            left = min(seconds, RECHECK_SECONDS, max(0.001, holder.seconds_left or RECHECK_SECONDS))
            self._wait_for(holder, left)

    def stop_waiting(self) -> None:
        with _explained():
            if self.session.is_direct and not self.session.is_lost:
                self.session.connection.execute(LEAVE, {"owner": self.owner})
                self.session.unlisten()

    def renew(self) -> bool:
        with _explained():
            if self.session.is_lost:
                self.session.reopen()
            return bool(self._fetch(RENEW)["renewed"])

    def release(self) -> bool:
        with _explained():
            if self.session.is_lost:
                self.session.reopen()
            released = bool(self._fetch(RELEASE)["released"])
            self.session.let_go()
            return released

    def pause(self, seconds: float, wake_fd: int) -> None:
        self.session.pause(seconds, wake_fd)

    @property
    def wants_renewal(self) -> bool:
        return self.session.is_lost

    def close(self) -> None:
        self.session.close()

    def _open(self) -> None:
        """Take a presence lock; choose another owner's name if its key is taken."""
        while self.session.is_lost and not self.session.open():
            self.session.close()
            self.session.owner = self.owner = self.new_owner()

    def _wait_for(self, holder: Holder, seconds: float) -> None:
        if not self.session.is_direct:
            self.session.await_release(min(seconds, POLL_SECONDS))
        elif holder.life is Life.ALIVE:
            self.session.watch(WATCH_PRESENCE, seconds, owner=holder.owner)
        else:
            self.session.await_release(seconds)

    def _refuse_cycle(self, holds: Collection[int]) -> None:
        held = holders(self.session.connection)
        fences = {holder.name: holder.fence or 0 for holder in held if holder.is_held and not holder.is_gone}
        cycle = find_cycle(self.name, holds, fences, waiters(self.session.connection))
        if cycle:
            raise LockCycle(cycle_sentence(cycle))

    def _fetch(self, statement: str) -> dict[str, Any]:
        [row] = self.session.fetch(statement, **self._params())
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
            "has_presence": self.session.is_direct,
            **more,
        }


class AdvisoryContender(LeaseContender):
    """A session advisory lock, with a lease row for its fence, its holder and its waiters.

    The lock ends with its session, so a broken session is a lost lock (fault F5). The server ends the session of a
    holder that is silent for the ttl. Other programs may take `pg_advisory_lock(rowlock_lock_key(name))`.
    """

    backend = "advisory"

    def try_acquire(self) -> int | None:
        with _explained():
            self._open()
            self._refuse_proxy()
            if not self._fetch(TAKE_KEY)["taken"]:
                return None
            if super().try_acquire() is None:
                self._fetch(DROP_KEY)
            else:
                self.session.fetch(END_WHEN_IDLE, idle_ms=f"{int(self.ttl * 1000)}ms")
        return self.fence

    def holder(self) -> Holder | None:
        with _explained():
            return super().holder() or self._bare_holder()

    def renew(self) -> bool:
        return not self.session.is_lost and super().renew()

    def release(self) -> bool:
        return not self.session.is_lost and super().release()

    def _wait_for(self, holder: Holder, seconds: float) -> None:
        if holder.backend == self.backend and holder.life is Life.ALIVE:
            self.session.watch(WATCH_KEY, seconds)
        else:
            super()._wait_for(holder, seconds)

    def _bare_holder(self) -> Holder | None:
        for row in self.session.fetch(BARE_HOLDER):
            owner = f"backend {row['pid']} {row['application_name']}".strip()
            return Holder(self.name, self.backend, Life.ALIVE, owner=owner, hostname=row["hostname"])
        return None

    def _refuse_proxy(self) -> None:
        if not self.session.is_direct:
            raise LockUnavailable(
                "An advisory lock belongs to a database session, and a pooling proxy stands before this one: set "
                "DIRECT_DATABASE_URL to the same database past the proxy, or use the backend 'lease'."
            )


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (psycopg.errors.UndefinedFunction, psycopg.errors.UndefinedTable) as error:
        raise LockUnavailable("The tables that keep locks are not there: run `manage.py migrate`.") from error
    except psycopg.Error as error:
        what = " ".join(str(error).split())
        raise LockUnavailable(
            f"The database that keeps the lock did not answer: {what}. Is it running and reachable? Then try again."
        ) from error
