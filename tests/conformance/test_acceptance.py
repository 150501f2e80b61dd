"""The scenarios of Procrastinate's acceptance tests, with our workers, and with commands in place of their calls.

Theirs can delete a job as they cancel it; here its row stays until it is pruned. Other scenarios have tests elsewhere,
under kills and with many workers: one task of a key at a time and stalled workers
(`tests.races`), one task of each tick (`tests.tasks.schedule.test_many_schedulers`), a cancelled task that fails,
looking without a notification, stopping, and the end of the grace period (`tests.tasks.worker`).
"""

import json
import os
import subprocess
import sys

import pytest

from tests.databases import ROOT
from tests.ledger import most_at_once
from tests.tasks.worker_app import pooled
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

RUNNING = {"a function": handlers.work, "a coroutine": pooled.rest}
COMMANDS = [sys.executable, "manage.py"]


@pytest.fixture
def manage(database):
    """Run a command of the project on this database; returns its exit status and its JSON."""
    environment = {**os.environ, "DATABASE_URL": database.url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    environment["ROWLOCK_APPS"] = "tests.tasks.worker_app"

    def run(*argv):
        words = [*COMMANDS, *map(str, argv), "--json"]
        ended = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
        return ended.returncode, json.loads(ended.stdout) if ended.stdout else ended.stderr

    return run


def order(ledger):
    return [effect.task_id for effect in ledger.effects()]


def test_a_worker_runs_the_tasks_of_its_queue_in_their_order_and_no_others(database, ledger, start_worker):
    sums = [task_id for _ in range(3) for task_id in database.enqueue(handlers.work, queue="sums")]
    [product] = database.enqueue(handlers.work, queue="products")
    assert start_worker("--queue", "sums", "--burst").wait() == 0
    assert order(ledger) == sums
    assert start_worker("--queue", "products", "--burst").wait() == 0
    assert order(ledger) == [*sums, product]


def test_many_are_enqueued_at_once_and_by_name(database, manage, start_worker):
    status, told = manage("enqueue_task", handlers.work.module_path, "--args", "[0.0]", "--count", 7)
    assert (status, told["count"]) == (0, 7)
    start_worker("--burst").wait()
    assert database.statuses() == {"COMPLETED": 7}


def test_the_urgent_run_first_and_the_later_ones_not_yet(database, ledger, start_worker):
    [usual] = database.enqueue(handlers.work)
    [urgent] = database.enqueue(handlers.work, priority=5)
    [later] = database.enqueue(handlers.work, priority=9, run_after_seconds=3600)
    start_worker("--burst").wait()
    assert order(ledger) == [urgent, usual]
    assert database.task(later).status == "READY"


def test_a_waiting_task_is_cancelled_and_its_row_stays(database, ledger, manage, start_worker):
    [cancelled] = database.enqueue(handlers.work)
    [other] = database.enqueue(handlers.work)
    assert manage("cancel_tasks", cancelled)[0] == 0
    start_worker("--burst").wait()
    assert order(ledger) == [other]
    assert database.statuses() == {"CANCELLED": 1, "COMPLETED": 1}


def test_to_cancel_what_is_not_there_fails_and_touches_nothing(database, manage):
    [task_id] = database.enqueue(handlers.work)
    assert manage("cancel_tasks", task_id + 1)[0] == 1
    assert database.statuses() == {"READY": 1}


@pytest.mark.parametrize("kind", RUNNING)
def test_a_running_task_is_cancelled(database, ledger, manage, start_worker, kind):
    [task_id] = database.enqueue(RUNNING[kind], 600.0)
    start_worker("--coroutines", 2)
    wait_until(lambda: ledger.effects(task_id))
    assert manage("cancel_tasks", task_id)[0] == 0
    assert database.wait_for(task_id, "CANCELLED").attempt == 1


@pytest.mark.parametrize("kind", RUNNING)
def test_a_running_task_is_cancelled_although_nobody_is_told(database, ledger, start_worker, kind):
    """As by raw SQL: the worker finds the request by looking."""
    [task_id] = database.enqueue(RUNNING[kind], 600.0)
    start_worker("--coroutines", 2)
    wait_until(lambda: ledger.effects(task_id))
    database.rows("UPDATE tasks_task SET cancel_requested_at = clock_timestamp() WHERE id = %s", task_id)
    database.wait_for(task_id, "CANCELLED")


def test_as_many_coroutines_run_at_once_as_are_allowed_and_no_more(database, ledger, start_worker):
    database.enqueue(pooled.rest, 0.1, count=100)
    start_worker("--coroutines", 20, "--burst").wait()
    assert database.statuses() == {"COMPLETED": 100}
    assert most_at_once(ledger.effects()) == 20


def test_a_second_task_of_a_unique_key_is_not_made_while_the_first_waits(database, manage, start_worker):
    words = ("enqueue_task", handlers.work.module_path, "--unique-key", "report")
    assert [manage(*words)[1]["duplicates"] for _ in range(2)] == [0, 1]
    start_worker("--burst").wait()
    assert database.statuses() == {"COMPLETED": 1}
    assert manage(*words)[1]["duplicates"] == 0


def test_a_failed_task_is_listed_and_run_again_by_commands(database, manage, start_worker):
    [task_id] = database.enqueue("shop.tasks.unknown", max_attempts=1)
    database.rows("UPDATE tasks_task SET status = 'FAILED', finished_at = now() WHERE id = %s", task_id)
    _, told = manage("list_tasks", "--status", "FAILED")
    assert [task["id"] for task in told["tasks"]] == [task_id]
    assert manage("requeue_tasks", task_id)[0] == 0
    assert database.task(task_id).status == "READY"
