"""Timeouts for queries of the server's statistics, so that a page never causes an outage (fault F21)."""

from collections.abc import Iterator
from contextlib import contextmanager

from tasks.database import Connection, fetch, transaction

STATEMENT_MS, LOCK_MS = 2000, 500
PERSON_STATEMENT_MS = 10_000  # for a command, because one person waits for it

LIMIT = """
SELECT set_config('statement_timeout', %(statement)s::text, true), set_config('lock_timeout', %(lock)s::text, true)
"""


@contextmanager
def limited(connection: Connection, statement_ms: int = STATEMENT_MS) -> Iterator[None]:
    """A short transaction with a statement timeout, and a lock timeout of half a second.

    Web sessions have timeouts already, except behind a pooling proxy that refuses the option, and in commands. Inside
    the transaction `pg_stat_activity` stays the same, so all statements see the same sessions.
    """
    with transaction(connection):
        fetch(connection, LIMIT, {"statement": f"{statement_ms}ms", "lock": f"{LOCK_MS}ms"})
        yield
