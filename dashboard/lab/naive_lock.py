"""The lock that one writes first: set if absent, poll, delete at the end (patterns, system B).

It has no expiry and no owner. It is a row instead of the article's cache key: the semantics of `cache.add` are the
same, and its faults do not depend on the server that keeps it.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection

from dashboard.lab.ledger import Ledger

CREATE = "CREATE TABLE lab_cache (key text PRIMARY KEY)"
ADD = "INSERT INTO lab_cache (key) VALUES (%s) ON CONFLICT DO NOTHING"
DELETE = "DELETE FROM lab_cache WHERE key = %s"
POLL_SECONDS = 0.1


@contextmanager
def hold(name: str, ledger: Ledger) -> Iterator[None]:
    """Wait for the lock, however long; delete it in `finally`, even if somebody else holds it by then."""
    with ledger.waiting():
        while not _run(ADD, name):
            time.sleep(POLL_SECONDS)
    try:
        yield
    finally:
        _run(DELETE, name)


def _run(statement: str, name: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(statement, [name])
        return bool(cursor.rowcount)
