"""The database runs out of something: room on its disk, connections. It says so, and once there is more all goes on."""

import contextlib
import os
from collections.abc import Iterator

import psutil
import psycopg
import pytest

from dashboard.embedded import cluster
from dashboard.embedded.server import running
from tests import databases
from tests.databases import QueueDatabase
from tests.disk import SmallDisk, small_disk
from tests.postgres import THROW_AWAY, PrivateServer
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

MEGABYTES = 220
SETTINGS = {"max_connections": "20", "max_wal_size": "48MB", "min_wal_size": "32MB", "shared_buffers": "16MB"}
TASKS = 300
# A row that fits into no page that is there already: it is random, so that nothing can be compressed.
LARGE = 40_000
# By then the children try again only every 5 s, while whoever sweeps comes back after half a second.
AWAY_SECONDS = 12
TERMINATE_WORKERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name LIKE 'rowlock:worker%%' OR application_name LIKE 'rowlock:supervisor%%'
"""


@pytest.fixture(scope="module")
def disk() -> Iterator[SmallDisk]:
    with cluster.folder() as folder:
        folder.chmod(0o711)
        with small_disk(folder / "disk", MEGABYTES) as disk:
            yield disk


@pytest.fixture(scope="module")
def breakable_server(disk: SmallDisk) -> Iterator[PrivateServer]:
    with running(disk.folder / "home", runs="a test session", settings={**THROW_AWAY, **SETTINGS}) as server:
        databases.migrate(databases.named(server.url, "rowlock_template"))
        yield PrivateServer(server)


@pytest.fixture
def database(breakable_database: QueueDatabase) -> QueueDatabase:
    return breakable_database


def assert_each_ran_once(database, ledger, task_ids):
    assert database.wait_until_finished() == {"COMPLETED": len(task_ids)}
    assert sorted(effect.task_id for effect in ledger.effects()) == sorted(task_ids), "lost or repeated"
    assert database.rows("SELECT * FROM tasks_worker WHERE stop_reason = 'convicted'") == []


@pytest.mark.chaos
def test_a_disk_that_is_full_refuses_tasks_and_loses_none(breakable_server, disk, database, ledger, start_worker):
    """The server may crash of it, and stay away until there is room: that is a restart."""
    accepted = database.enqueue(handlers.work, 0.01, count=TASKS)
    worker = start_worker("--concurrency", 2)
    wait_until(lambda: ledger.count() > TASKS / 5)
    server = psutil.Process(breakable_server.server.process.pid)
    disk.fill(server)
    refused = None
    while refused is None:
        try:
            accepted += database.enqueue(handlers.work, 0.0, os.urandom(LARGE).hex())
        except psycopg.Error as error:
            refused = error
    assert "No space left on device" in str(refused) or not disk.is_mounted or database.connection.closed
    disk.free(server)
    if not psutil.pid_exists(server.pid) or server.status() == psutil.STATUS_ZOMBIE:
        breakable_server.restart()
    database.close()
    wait_until(breakable_server.serves)
    accepted += database.enqueue(handlers.work)
    assert_each_ran_once(database, ledger, accepted)
    assert worker.stop() == 0


@pytest.mark.chaos
def test_workers_that_get_no_connection_wait_until_there_is_one(breakable_server, database, ledger, start_worker):
    """Those that lose theirs, and one that starts meanwhile."""
    accepted = database.enqueue(handlers.work, 0.02, count=TASKS)
    workers = [start_worker("--concurrency", 2) for _ in range(2)]
    wait_until(lambda: ledger.count() > TASKS / 5)
    with contextlib.ExitStack() as others:
        away_at = ledger.now()
        database.rows(TERMINATE_WORKERS)
        take_every_connection(breakable_server, others)
        workers.append(start_worker())
        for worker in workers:
            worker.wait_until_it_says("too many clients already")
        wait_until(lambda: (ledger.now() - away_at).total_seconds() > AWAY_SECONDS)
    accepted += database.enqueue(handlers.work)
    assert_each_ran_once(database, ledger, accepted)
    assert [worker.stop() for worker in workers] == [0, 0, 0]


def take_every_connection(server: PrivateServer, stack: contextlib.ExitStack) -> None:
    with contextlib.suppress(psycopg.OperationalError):
        while True:
            stack.enter_context(contextlib.closing(server.connect()))
