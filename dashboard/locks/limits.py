"""Time limits for what the lock page asks, because any table that it reads may be locked.

The tree needs catalogs alone. Names come from tables, which are asked one by one and left out if they do not answer.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import psycopg
from django.db import DatabaseError
from django.utils.translation import gettext as _

from tasks.support.database import Connection, fetch, sqlstate, transaction

T = TypeVar("T")
STATEMENT_MS, LOCK_MS = 2000, 500
PERSON_STATEMENT_MS = 10_000  # for a command, because one person waits for it
NAME_MS = 200
TOO_SLOW = {"55P03", "57014"}  # lock timeout, statement timeout
PREPARED = 0  # in place of a pid, as pg_blocking_pids() returns it for a prepared transaction

LIMIT = """
SELECT set_config('statement_timeout', %(statement)s::text, true), set_config('lock_timeout', %(lock)s::text, true)
"""

# Who waits for a lock stops later ones as well. A locked index stops every statement on its table.
LOCKED = """
SELECT DISTINCT ON (name) coalesce(index.indrelid, lock.relation)::regclass::text AS name, coalesce(lock.pid, 0) AS pid
FROM pg_locks AS lock LEFT JOIN pg_index AS index ON index.indexrelid = lock.relation
WHERE lock.locktype = 'relation' AND lock.mode = ANY(%(modes)s::text[]) AND lock.pid IS DISTINCT FROM pg_backend_pid()
  AND lock.database = (SELECT oid FROM pg_database WHERE datname = current_database())
ORDER BY name, lock.granted DESC, lock.waitstart
"""
AGAINST_READERS = ("AccessExclusiveLock",)
AGAINST_WRITERS = (*AGAINST_READERS, "ExclusiveLock", "ShareRowExclusiveLock", "ShareLock")


@contextmanager
def limited(
    connection: Connection, statement_ms: int = STATEMENT_MS, lock_ms: int = LOCK_MS, *, rollback: bool = False
) -> Iterator[None]:
    """A short transaction with a statement timeout and a lock timeout; with `rollback` the outer limits return.

    Web sessions have timeouts already, except behind a pooling proxy that refuses the option, and in commands. Inside
    the transaction `pg_stat_activity` stays the same, so all statements see the same sessions.
    """
    with transaction(connection, rollback=rollback):
        fetch(connection, LIMIT, {"statement": f"{statement_ms}ms", "lock": f"{lock_ms}ms"})
        yield


def locked_tables(connection: Connection, modes: tuple[str, ...] = AGAINST_READERS) -> dict[str, int]:
    """The tables locked in one of these modes, each with the pid of the session that others wait for."""
    return {row["name"]: row["pid"] for row in fetch(connection, LOCKED, {"modes": list(modes)})}


@dataclass(frozen=True)
class Unavailable:
    """A table that cannot be read. `pid`: the session that locks it, or PREPARED; None if it was only too slow.

    `is_needed`: a name of the page stands in it.
    """

    table: str
    pid: int | None = None
    is_needed: bool = True

    def __str__(self) -> str:
        values = {"table": self.table, "pid": self.pid, "limit": NAME_MS}
        if self.pid is None:
            return _("name not available: `%(table)s` did not answer within %(limit)d ms") % values
        if self.pid == PREPARED:
            return _("`%(table)s` is locked by a prepared transaction") % values
        if not self.is_needed:
            return _("`%(table)s` is locked by %(pid)d") % values
        return _("name not available: `%(table)s` is locked by %(pid)d") % values


class Names:
    """Asks tables for names. `unavailable` has those that did not answer."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.unavailable: set[Unavailable] = set()
        self._locked: dict[str, int] = {}
        self._is_read = False

    def ask(self, question: Callable[[], T], *tables: str) -> T | None:
        """The answer; None if one of its tables is locked, or if a statement takes longer than NAME_MS.

        The catalogs name the locked tables, which are not even tried: a page costs no wait for them.
        """
        if not self._is_read:
            self._read_locks()
        if not self._skips(tables):
            try:
                with limited(self.connection, NAME_MS, NAME_MS, rollback=True):
                    return question()
            except (DatabaseError, psycopg.Error) as error:
                if sqlstate(error) not in TOO_SLOW:
                    raise
            self._read_locks()
            if not self._skips(tables):
                self.unavailable.add(Unavailable(tables[0]))
        return None

    def locked(self, tables: Iterable[str]) -> set[Unavailable]:
        """The tables among these that are locked although no name was asked of them."""
        return {Unavailable(table, self._locked[table], is_needed=False) for table in tables if table in self._locked}

    def _read_locks(self) -> None:
        self._locked, self._is_read = locked_tables(self.connection), True

    def _skips(self, tables: tuple[str, ...]) -> bool:
        locked = {Unavailable(table, self._locked[table]) for table in tables if table in self._locked}
        self.unavailable |= locked
        return bool(locked)
