"""Pytest plugin (`-p tests.workers`): a database for each test, the ledger, and workers on them."""

import os
from collections.abc import Iterator
from typing import Protocol

import pytest

from tests import databases, processes
from tests.databases import QueueDatabase
from tests.ledger import Ledger
from tests.postgres import PrivateServer, throw_away_server
from tests.processes import Worker


class StartWorker(Protocol):
    """Starts a worker on the test's database, with arguments and environment variables."""

    def __call__(self, *arguments: object, **variables: object) -> Worker: ...


@pytest.fixture(scope="session")
def ledger_url(template_url: str) -> Iterator[str]:
    url = databases.named(template_url, f"{databases.name_of(template_url)}_ledger")
    databases.drop(url)
    databases.create(url)
    yield url
    databases.drop(url)


@pytest.fixture(scope="session")
def template_url() -> Iterator[str]:
    """A migrated database without connections, to copy from."""
    process = os.environ.get("PYTEST_XDIST_WORKER", "")  # several may share a server
    url = databases.named(os.environ["DATABASE_URL"], f"rowlock_template{process}")
    databases.drop(url)
    databases.migrate(url)
    yield url
    databases.drop(url)


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    """The ledger of effects, empty."""
    ledger = Ledger(ledger_url)
    yield ledger
    ledger.close()


@pytest.fixture
def database(template_url: str) -> Iterator[QueueDatabase]:
    """An empty queue for one test."""
    with databases.copy_of(template_url) as database:
        yield database


@pytest.fixture
def start_worker(database: QueueDatabase, ledger: Ledger) -> Iterator[StartWorker]:
    """Starts workers on `database`; none of their processes outlives the test."""
    workers: list[Worker] = []

    def start(*arguments: object, **variables: object) -> Worker:
        workers.append(processes.start_worker(database.url, ledger.url, *arguments, **variables))
        return workers[-1]

    with processes.ended_at_last(workers):
        yield start


@pytest.fixture(scope="module")
def breakable_server() -> Iterator[PrivateServer]:
    """A server that the tests of one module may stop, restart and crash, with a migrated database to copy from."""
    with throw_away_server() as server:
        databases.migrate(databases.named(server.url, "rowlock_template"))
        yield PrivateServer(server)


@pytest.fixture
def breakable_database(breakable_server: PrivateServer) -> Iterator[QueueDatabase]:
    """An empty queue on the breakable server; a module overrides `database` with it."""
    with databases.copy_of(databases.named(breakable_server.url, "rowlock_template")) as database:
        yield database
