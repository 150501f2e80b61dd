"""READY means that nobody has begun the task: to everybody, raw SQL included, while a worker drains the queue."""

import os
import signal
from pathlib import Path

import psycopg
import pytest

from tests.commands import run_process
from tests.processes import HANDLERS_APP
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

MANY = 30_000
FEW = 300
CANCEL_READY = """
WITH ready AS MATERIALIZED (
    SELECT id FROM tasks_task WHERE status = 'READY' ORDER BY id LIMIT 20 FOR UPDATE SKIP LOCKED
)
UPDATE tasks_task SET status = 'CANCELLED', finished_at = now() FROM ready
WHERE tasks_task.id = ready.id AND status = 'READY' RETURNING tasks_task.id
"""


@pytest.fixture
def jots(tmp_path):
    return tmp_path / "jots"


def begun(jots: Path) -> list[int]:
    """The ids of the tasks that have begun, in their order."""
    return [int(line.split()[0]) for line in jots.read_text().splitlines()] if jots.exists() else []


def run_through(database, start_worker, jots, **variables):
    """A worker in the middle of a full queue."""
    database.fill(handlers.jot, MANY)
    worker = start_worker(TEST_JOTS=jots, **variables)
    wait_until(lambda: jots.exists() and jots.stat().st_size > 0)
    return worker


def test_what_an_outsider_cancels_has_not_begun_and_never_does(database, start_worker, jots):
    run_through(database, start_worker, jots)
    cancelled: set[int] = set()
    with psycopg.connect(database.url, autocommit=True) as outsider:
        while taken := outsider.execute(CANCEL_READY).fetchall():
            cancelled |= {task_id for (task_id,) in taken}
    statuses = database.wait_until_finished()
    assert cancelled.isdisjoint(begun(jots))
    assert statuses["CANCELLED"] == len(cancelled) > 0
    assert len(set(begun(jots))) == len(begun(jots)) == MANY - len(cancelled) == statuses["COMPLETED"]


def test_a_row_that_somebody_has_locked_keeps_no_other_from_being_written(database, start_worker, ledger):
    """The worker goes round it, and writes it once it is free."""
    [held] = database.enqueue(handlers.work, 0.5)
    others = database.enqueue(handlers.quick, count=FEW)
    start_worker()
    wait_until(lambda: ledger.count() == 1)
    with psycopg.connect(database.url) as outsider:
        outsider.execute("SELECT FROM tasks_task WHERE id = %s FOR UPDATE", [held])
        wait_until(lambda: database.statuses()["COMPLETED"] == FEW)
        assert database.task(held).status == "PROCESSING"
        assert {database.task(task_id).status for task_id in others[:5]} == {"COMPLETED"}
    database.wait_for(held, "COMPLETED")


@pytest.fixture
def frozen(database, start_worker, jots, settings):
    """A worker that was frozen in the middle of a batch; its lease has not ended."""
    worker = run_through(database, start_worker, jots, ROWLOCK_LEASE_SECONDS=600)
    [child] = worker.children()
    os.kill(child, signal.SIGSTOP)
    yield worker
    os.kill(child, signal.SIGCONT)


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize(
    "command", [("edit_tasks", "--set-priority", "5"), ("requeue_tasks",)], ids=lambda words: words[0]
)
def test_no_command_changes_what_runs_in_a_frozen_process(database, jots, command):
    name, *options = command
    [running] = database.rows("SELECT * FROM tasks_task WHERE id = %s", begun(jots)[-1])
    environment = {"DATABASE_URL": database.url, "ROWLOCK_APPS": HANDLERS_APP}
    outcome = run_process(name, str(running.id), *options, "--json", env=environment)
    shown = run_process("show_task", str(running.id), "--json", env=environment)
    assert (outcome.status, outcome.data["ids"], len(outcome.data["refused"])) == (1, [], 1)
    assert database.task(running.id).version == running.version
    assert "Ready" not in shown.stdout


@pytest.mark.usefixtures("frozen")
def test_what_a_frozen_worker_has_begun_is_nobodys_to_change(database, jots):
    """It stands PROCESSING until it is COMPLETED, so that no statement on READY rows can meet it."""
    ids = set(begun(jots))
    rows = database.rows("SELECT id, status FROM tasks_task WHERE id = ANY(%s)", list(ids))
    assert {row.status for row in rows} <= {"PROCESSING", "COMPLETED"}
    ready = {row.id for row in database.rows("SELECT id FROM tasks_task WHERE status = 'READY'")}
    assert ready.isdisjoint(begun(jots))


def test_a_handler_can_lock_its_own_row(database, start_worker):
    database.enqueue(handlers.lock_its_row, count=FEW)
    start_worker()
    assert database.wait_until_finished() == {"COMPLETED": FEW}
    assert database.value("SELECT count(*) FROM tasks_attempt") == 0


def test_no_task_of_a_paused_queue_is_claimed(database, start_worker, jots):
    """What was claimed before it was paused is finished: those rows say so."""
    run_through(database, start_worker, jots)
    with database.connection.transaction():
        # Waits for the claims that are under way, and lets none look at the queue before it is paused.
        database.connection.execute("LOCK TABLE tasks_queue IN ACCESS EXCLUSIVE MODE")
        database.connection.execute("INSERT INTO tasks_queue (name, paused) VALUES ('default', true)")
        ready = {row.id for row in database.rows("SELECT id FROM tasks_task WHERE status = 'READY'")}
    wait_until(lambda: database.statuses()["PROCESSING"] == 0)
    assert ready
    assert {row.id for row in database.rows("SELECT id FROM tasks_task WHERE status = 'READY'")} == ready
    assert ready.isdisjoint(begun(jots))


def test_one_attempt_is_lost_with_the_worker_at_most(database, start_worker, jots):
    """Worker and supervisor die together, as where memory ends: only the task in hand had begun, and it alone pays."""
    database.enqueue(handlers.jot, count=FEW, max_attempts=1)
    first = start_worker(TEST_JOTS=jots)
    wait_until(lambda: len(begun(jots)) >= 20)
    first.send_all(signal.SIGKILL)
    first.wait()
    start_worker(TEST_JOTS=jots)
    statuses = database.wait_until_finished()
    assert statuses["FAILED"] <= 1
    failed = {row.id for row in database.rows("SELECT id FROM tasks_task WHERE status = 'FAILED'")}
    assert statuses["COMPLETED"] == FEW - len(failed)
    assert len(set(begun(jots)) - failed) == FEW - len(failed)
