"""Sessions beside Django's, to hold locks, and helpers that ask PostgreSQL who waits."""

import contextlib
from collections.abc import Iterator

import psycopg
from django.db import connection

from tests.waiting import wait_until

LIMITS = "-c statement_timeout=10s -c idle_in_transaction_session_timeout=30s"
OPTIONS = ("dbname", "host", "port", "user", "password")


@contextlib.contextmanager
def session(application_name: str = "rowlock:test", **params: object) -> Iterator[psycopg.Connection]:
    """A session whose first statement opens a transaction; rolled back and closed at the end.

    Its timeouts are short, so that a failing test does not hang.
    """
    known = {key: value for key, value in connection.get_connection_params().items() if key in OPTIONS}
    conn = psycopg.connect(**{**known, "application_name": application_name, "options": LIMITS, **params})
    with contextlib.closing(conn):
        yield conn


def wait_until_blocked(pid: int) -> None:
    """Return once the session `pid` waits for another session's lock."""

    def is_blocked() -> bool:
        with connection.cursor() as cursor:
            cursor.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", [pid])
            return cursor.fetchone()[0]

    wait_until(is_blocked)
