"""Limits on what a page asks of the server's own statistics: such a look must never be the outage (fault F21)."""

from collections.abc import Iterator
from contextlib import contextmanager

from tasks.database import Connection, fetch, transaction

STATEMENT_MS, LOCK_MS = 2000, 500
PERSON_STATEMENT_MS = 10_000  # of a command, which one person has typed and waits for

LIMIT = """
SELECT set_config('statement_timeout', %(statement)s::text, true), set_config('lock_timeout', %(lock)s::text, true)
"""


@contextmanager
def limited(connection: Connection, statement_ms: int = STATEMENT_MS) -> Iterator[None]:
    """A short transaction whose statements give up after two seconds, and after half a second behind a lock.

    Sessions of the web server have limits already, but not behind a pooling proxy, which refuses the option, nor in a
    command. Inside it `pg_stat_activity` stands still, so that all statements of a look see the same sessions.
    """
    with transaction(connection):
        fetch(connection, LIMIT, {"statement": f"{statement_ms}ms", "lock": f"{LOCK_MS}ms"})
        yield
