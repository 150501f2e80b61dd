"""Outages of the database. Each function returns when the database serves again."""

import contextlib
import signal
import time
from collections.abc import Iterator

import psutil
import psycopg
from django.db import connection

from dashboard.embedded import server as postmaster
from tests.databases import QueueDatabase
from tests.postgres import PrivateServer
from tests.waiting import wait_until

TERMINATE_ALL = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""

# Like statement_timeout, for every running statement.
CANCEL_ALL = """
SELECT pg_cancel_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'active'
"""


def restart(server: PrivateServer, database: QueueDatabase) -> None:
    """Shut down immediately, as if the machine lost power, and start again."""
    postmaster.stop(psutil.Process(server.server.process.pid), ((signal.SIGQUIT, 20.0),))
    server.restart()
    database.close()


def crash_one_backend(server: PrivateServer, database: QueueDatabase) -> None:
    """Kill one backend; PostgreSQL then drops every session."""
    server.crash_backend()
    database.close()


def terminate_every_backend(server: PrivateServer, database: QueueDatabase) -> None:
    """End every session by SQL; the server continues, and so does the epoch."""
    database.rows(TERMINATE_ALL)


def time_out_statements(server: PrivateServer, database: QueueDatabase, *, seconds: float = 1.5) -> None:
    """For `seconds` a migration locks the tasks, and statements are cancelled as by their time limit."""
    with psycopg.connect(database.url) as migration:
        migration.execute("LOCK TABLE tasks_task")
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            database.rows(CANCEL_ALL)
            database.rows("SELECT pg_sleep(0.01)")


def read_only(server: PrivateServer, database: QueueDatabase, *, seconds: float) -> None:
    """Refuse writes for `seconds`, like a server after a failover."""
    _set_read_only(database, "on")
    database.rows("SELECT pg_sleep(%s)", seconds)
    _set_read_only(database, "off")


def _set_read_only(database: QueueDatabase, value: str) -> None:
    database.rows("SET default_transaction_read_only = off")
    database.rows(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
    database.rows("SELECT pg_reload_conf()")

    def new_sessions_are_so() -> bool:
        with psycopg.connect(database.url) as connection:
            return connection.execute("SHOW default_transaction_read_only").fetchone()[0] == value

    wait_until(new_sessions_are_so)


@contextlib.contextmanager
def database_at(host: str) -> Iterator[None]:
    """Django's connection leads to this folder of a server's socket; back to the session's database at the end."""
    kept = connection.settings_dict["HOST"]
    connection.close()
    connection.settings_dict["HOST"] = host
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict["HOST"] = kept
