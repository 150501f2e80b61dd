"""Pytest plugin (`-p tests.postgres`): a throw-away PostgreSQL for the session, private ones for tests that break them.

With TEST_DATABASE_URL set the session uses that server instead. When pytest-xdist spreads the tests over processes,
each of them has a server of its own, and the process that only hands out the tests has none. Either way DATABASE_URL is
set before Django's settings are read, so that no test can reach the database that the shell's own DATABASE_URL names.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
import psycopg
import pytest

from dashboard.embedded import runtime
from dashboard.embedded.server import EmbeddedServer, running
from tests.waiting import wait_until

# A crash of the machine may lose it; kill -9 of a process loses nothing even so.
THROW_AWAY = {"fsync": "off", "full_page_writes": "off"}
NOBODY_CONNECTS = "postgres:///no-such-database"
FOREIGN_SETTINGS = ("DIRECT_DATABASE_URL", "REDIS_URL")


@contextlib.contextmanager
def throw_away_server(**settings: str) -> Iterator[EmbeddedServer]:
    """A running server whose data goes with it, with these settings; what a killed session leaves the next removes."""
    with runtime.folder() as folder:
        folder.chmod(0o711)
        with running(folder / "home", runs="a test session", settings={**THROW_AWAY, **settings}) as server:
            yield server


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Iterator[None]:
    """Before pytest-django, whose hook of this name reads the settings: a wrapper comes before every plain hook."""
    for name in FOREIGN_SETTINGS:
        os.environ.pop(name, None)
    if early_config.known_args_namespace.numprocesses and "PYTEST_XDIST_WORKER" not in os.environ:
        os.environ["DATABASE_URL"] = NOBODY_CONNECTS
        return (yield)
    if "TEST_DATABASE_URL" not in os.environ:
        server = contextlib.ExitStack()
        early_config.add_cleanup(server.close)
        os.environ["TEST_DATABASE_URL"] = server.enter_context(throw_away_server()).url
    os.environ["DATABASE_URL"] = os.environ["TEST_DATABASE_URL"]
    return (yield)


@dataclass
class PrivateServer:
    """A server that one test may stop, restart and crash; its address survives all of it."""

    server: EmbeddedServer

    @property
    def url(self) -> str:
        return self.server.url

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self.url, autocommit=True)

    def start(self) -> None:
        self.server.start()

    def stop(self) -> None:
        self.server.stop()

    def restart(self) -> None:
        self.stop()
        self.start()

    def crash_backend(self, pid: int | None = None) -> None:
        """Kills one backend (default: a fresh one); PostgreSQL then restarts all. Returns once it serves again."""
        with contextlib.suppress(psycopg.OperationalError), self.connect() as victim:
            pid = pid or victim.info.backend_pid
            os.kill(pid, signal.SIGKILL)
            # The main process learns of the death before it accepts anybody else.
            wait_until(lambda: not psutil.pid_exists(pid))
        wait_until(self.serves)

    def serves(self) -> bool:
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True


@pytest.fixture
def private_server() -> Iterator[PrivateServer]:
    """A server of the test's own."""
    with throw_away_server() as server:
        yield PrivateServer(server)
