"""A worker that hangs while its supervisor is frozen: what it has not begun is released by hand, and runs elsewhere."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.chaos.gated import tasks as gated
from tests.databases import ROOT
from tests.processes import HANDLERS_APP
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

# As if it were frozen for longer, and not yet for a whole lease.
MISS_RENEWALS = "UPDATE tasks_worker SET heartbeat_at = clock_timestamp() - lease_seconds * interval '0.6 s'"
HELD = "SELECT id FROM tasks_task WHERE status = 'PROCESSING' ORDER BY id"
REFUSED = "SELECT task_id FROM tasks_refusedwrite WHERE worker_id = %s AND intent = 'complete' ORDER BY task_id"


@pytest.fixture
def gate(ledger):
    with gated.shut_gate(ledger.url) as gate:
        yield gate


@pytest.fixture
def hanging(database, ledger, gate, start_worker):
    """Such a worker, its id, the task that hangs until its process is let go, and those behind it."""
    worker = start_worker(ROWLOCK_LEASE_SECONDS=600, ROWLOCK_APPS=f"{HANDLERS_APP},{gated.APP}")
    [first] = database.enqueue(handlers.quick)
    database.wait_for(first, "COMPLETED")
    worker.send(signal.SIGSTOP)
    with database.connection.transaction():
        database.enqueue(handlers.quick, count=600)
        [hung] = database.enqueue(gated.wait_at_the_gate)
        behind = database.enqueue(handlers.work, count=20)
    wait_until(lambda: ledger.effects(hung))
    wait_until(lambda: database.statuses()["COMPLETED"] == 601)
    os.kill(worker.children()[0], signal.SIGSTOP)
    return worker, database.value("SELECT id FROM tasks_worker"), hung, behind


def release(database, worker_id: str) -> tuple[int, dict]:
    """What the command answers; it says that nothing hangs until the worker has been on its task for a while."""
    argv = [sys.executable, "manage.py", "release_unstarted", worker_id, "--reason", "it hangs", "--json"]
    told = subprocess.run(argv, cwd=ROOT, env={**os.environ, "DATABASE_URL": database.url}, capture_output=True)
    return told.returncode, json.loads(told.stdout)


def test_what_it_has_not_begun_runs_elsewhere_and_its_late_writes_are_refused(
    database, ledger, gate, start_worker, hanging
):
    worker, worker_id, hung, behind = hanging
    [child] = worker.children()
    assert [row.id for row in database.rows(HELD)] == [hung, *behind]
    status, told = release(database, worker_id)
    assert (status, "has not been on one task" in told["error"]) == (1, True)

    database.rows(MISS_RENEWALS)
    status, told = wait_until(lambda: (answer := release(database, worker_id))[0] == 0 and answer)
    assert (told["released"], told["ids"], told["refused"]) == (20, behind, [])
    assert [row.id for row in database.rows(HELD)] == [hung]
    start_worker()
    done = [database.wait_for(task_id, "COMPLETED") for task_id in behind]
    assert {task.attempt for task in done} == {1}
    assert child not in {effect.pid for effect in ledger.effects() if effect.task_id in behind}

    gate.close()
    os.kill(child, signal.SIGCONT)
    assert database.wait_for(hung, "COMPLETED").finished_by == worker_id
    wait_until(lambda: [row.task_id for row in database.rows(REFUSED, worker_id)] == behind)
    assert [database.task(task.id) for task in done] == done
