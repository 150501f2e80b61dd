"""The server is killed with relaxed commits under way: what was completed is there, whatever else was lost."""

import os
import signal
from collections.abc import Iterator

import psutil
import pytest

from tests import databases
from tests.postgres import PrivateServer, throw_away_server
from tests.tasks.worker_app import pooled
from tests.waiting import wait_until

# COMPLETED tasks whose row is missing.
MISSING = """
SELECT count(*) FROM tasks_task AS task WHERE task.status = 'COMPLETED'
  AND NOT EXISTS (SELECT FROM tasks_queue AS queue WHERE queue.name = 'written by ' || task.id)
"""


@pytest.fixture(scope="module")
def fragile_server() -> Iterator[PrivateServer]:
    """Nothing but a commit that waits writes its WAL within a test."""
    with throw_away_server(wal_writer_delay="10s") as server:
        databases.migrate(databases.named(server.url, "rowlock_template"))
        yield PrivateServer(server)


@pytest.fixture
def database(fragile_server):
    with databases.copy_of(databases.named(fragile_server.url, "rowlock_template")) as database:
        yield database


def kill_server(server: PrivateServer) -> None:
    """SIGKILL of the main process and of all its children: what is in its memory is lost."""
    main = psutil.Process(server.server.process.pid)
    main.suspend()  # it must not start another one meanwhile, which would keep the shared memory from the next server
    children = main.children(recursive=True)
    for process in [main, *children]:
        process.send_signal(signal.SIGKILL)
    server.server.process.wait()
    wait_until(lambda: all(map(is_gone, children)))


def is_gone(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def freeze(worker, number):
    for pid in worker.members():
        os.kill(pid, number)


# Why it holds: WAL is one sequence, and a commit that waits flushes all of it up to its own record. The handler's
# commit had returned before the completion was sent, so its record comes first, whichever session wrote which.
@pytest.mark.parametrize("kills", [4, pytest.param(50, marks=pytest.mark.chaos)])
def test_no_task_is_completed_whose_write_a_crash_of_the_server_lost(
    fragile_server, database, ledger, start_worker, kills
):
    lost = 0
    worker = start_worker("--threads", 8)
    for kill in range(kills):
        tasks = database.enqueue(pooled.write_relaxed, count=600)
        begun = ledger.count() + 200
        wait_until(lambda begun=begun: ledger.count() > begun)
        freeze(worker, signal.SIGSTOP)  # so that it does not repeat what was lost before we look
        kill_server(fragile_server)
        database.close()
        fragile_server.start()
        assert database.value(MISSING) == 0, f"kill {kill + 1}"
        ended = {effect.task_id for effect in ledger.effects() if effect.ended} & set(tasks)
        done = {row.id for row in database.rows("SELECT id FROM tasks_task WHERE status = 'COMPLETED'")}
        written = {row.name for row in database.rows("SELECT name FROM tasks_queue")}
        lost += len([task_id for task_id in ended - done if f"written by {task_id}" not in written])
        freeze(worker, signal.SIGCONT)
        assert set(database.wait_until_finished(seconds=120)) == {"COMPLETED"}
        assert database.value(MISSING) == 0, f"after kill {kill + 1}"
    assert lost, "no commit was lost with the server: none was relaxed"
