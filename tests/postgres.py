"""Pytest plugin (`-p tests.postgres`): a throw-away PostgreSQL for the session, private ones for tests that break them.

With TEST_DATABASE_URL the session uses that server instead. With pytest-xdist each worker process has its own server,
and the process that only distributes tests has none. DATABASE_URL is set before Django reads its settings, so that no
test can reach the shell's own database.

The process that distributes tests makes the data of a server with a migrated database; the others start with a copy.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg
import pytest

from dashboard.embedded import cluster
from dashboard.embedded.server import EmbeddedServer, running
from tests import databases
from tests.waiting import wait_until

# Only a crash of the machine can lose data; kill -9 of a process loses nothing.
THROW_AWAY = {"fsync": "off", "full_page_writes": "off"}
NOBODY_CONNECTS = "postgres:///no-such-database"
FOREIGN_SETTINGS = ("DIRECT_DATABASE_URL", "REDIS_URL")
DATA = "ROWLOCK_TEST_DATA"  # the variable with the data folder that every server starts with


@contextlib.contextmanager
def throw_away_server(**settings: str) -> Iterator[EmbeddedServer]:
    """A running server with these settings and temporary data; the next session removes what a killed one left."""
    with cluster.folder() as folder:
        folder.chmod(0o711)
        if data := os.environ.get(DATA):
            copy_data(Path(data), folder / "home")
        with running(folder / "home", runs="a test session", settings={**THROW_AWAY, **settings}) as server:
            yield server


def copy_data(data: Path, home: Path) -> None:
    """Copy the data of a server that does not run into a new home, with their owner."""
    home.mkdir()
    subprocess.run(["cp", "-a", data, home / "data"], check=True)


@contextlib.contextmanager
def migrated_data() -> Iterator[Path]:
    """The data of a stopped server with the migrated database `rowlock_migrated`."""
    with throw_away_server() as server:
        databases.migrate(databases.named(server.url, "rowlock_migrated"))
        server.stop()
        yield server.data


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Iterator[None]:
    """Runs before pytest-django's hook of this name, which reads the settings: a wrapper runs before plain hooks."""
    for name in FOREIGN_SETTINGS:
        os.environ.pop(name, None)
    kept = contextlib.ExitStack()
    early_config.add_cleanup(kept.close)
    if early_config.known_args_namespace.numprocesses and "PYTEST_XDIST_WORKER" not in os.environ:
        os.environ["DATABASE_URL"] = NOBODY_CONNECTS
        if "TEST_DATABASE_URL" not in os.environ:
            os.environ[DATA] = str(kept.enter_context(migrated_data()))
            os.environ[databases.MIGRATED] = "rowlock_migrated"
        return (yield)
    if "TEST_DATABASE_URL" not in os.environ:
        os.environ["TEST_DATABASE_URL"] = kept.enter_context(throw_away_server()).url
    os.environ["DATABASE_URL"] = os.environ["TEST_DATABASE_URL"]
    return (yield)


@dataclass
class PrivateServer:
    """A server that one test may stop, restart and crash; its URL stays the same."""

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
        """Kill one backend (default: a new one); PostgreSQL then restarts all. Returns once it serves again."""
        with contextlib.suppress(psycopg.OperationalError), self.connect() as victim:
            pid = pid or victim.info.backend_pid
            os.kill(pid, signal.SIGKILL)
            # The main process notices the death before it accepts another client.
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
    with throw_away_server() as server:
        yield PrivateServer(server)
