"""Many processes enqueue one unique key at once: there is one task, whoever rolls back, is killed or replaces it."""

import json
import os
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from queue import Queue
from typing import Any

import pytest
from django.db import connection, connections, transaction

from tasks.framework.declaration import ON_DUPLICATE
from tasks.framework.declaration import UNIQUE_WHILE as WHILE
from tasks.models import Task
from tasks.queue import completion, release
from tasks.queue.completion import Ending, Failure
from tests.commands import database_url
from tests.processes import ROOT
from tests.races.crew import at_once
from tests.sessions import session, wait_until_blocked
from tests.tasks import handlers
from tests.tasks.claiming import claim

pytestmark = pytest.mark.django_db(transaction=True)
SHORT, LONG = (16, 25, 4), (64, 100, 16)  # processes, enqueues by each, kills
BROKEN = Failure("builtins.ValueError", "Traceback …", retry_seconds=0)
PARTS = pytest.mark.parametrize("size", [SHORT, pytest.param(LONG, marks=pytest.mark.chaos)], ids=["short", "long"])


def start(size: tuple[int, int, int], unique_while: str, on_duplicate: str) -> "subprocess.Popen[str]":
    argv = [sys.executable, "-m", "tests.races.enqueuers", *map(str, size), unique_while, on_duplicate]
    environment = {**os.environ, "DATABASE_URL": database_url(), "DJANGO_SETTINGS_MODULE": "tests.settings"}
    return subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def report(process: "subprocess.Popen[str]") -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(process.communicate()[0])
    assert answer["failed"] == 0
    return answer


@PARTS
@pytest.mark.parametrize("unique_while", ["queued", "active"])
def test_one_task_for_all_of_them(size, unique_while):
    answer = report(start(size, unique_while, "keep"))
    task = Task.objects.get()
    assert answer["ids"] == [task.pk]
    assert (task.status, task.version) == ("READY", 1)
    assert answer["killed"] > 0


@PARTS
def test_each_committed_replacement_is_one_version(size):
    answer = report(start(size, "active", "replace"))
    task = Task.objects.get()
    assert answer["ids"] == [task.pk]
    # The first one that was committed inserted; a killed process may have committed what it did not note.
    assert answer["noted"] <= task.version <= answer["noted"] + answer["killed"]


@pytest.mark.parametrize("is_committed", [True, False])
def test_the_second_waits_for_the_first_and_follows_how_it_ended(is_committed):
    with session() as first, ThreadPoolExecutor(1) as pool:
        first_id = first.execute("SELECT rowlock_enqueue('any.task', unique_key => 'k')").fetchone()[0]
        pids: Queue[int] = Queue()
        second = pool.submit(enqueued, pids)
        wait_until_blocked(pids.get(timeout=30))
        first.commit() if is_committed else first.rollback()
        assert (second.result(30) == first_id) == is_committed
    assert Task.objects.filter(unique_key="k").count() == 1


def enqueued(pids: "Queue[int]") -> int:
    """The id that this thread's enqueue gives back."""
    try:
        connection.ensure_connection()
        pids.put(connection.connection.info.backend_pid)
        return int(handlers.echo.using(unique_key="k").enqueue(1).id)
    finally:
        connection.close()


@pytest.mark.parametrize("is_undone", [True, False], ids=["inserts", "replacements"])
def test_batches_with_the_same_keys_in_other_orders_do_not_lock_each_other_out(is_undone):
    def enqueue(chance: random.Random) -> None:
        keys = [f"key {number}" for number in range(1000)]
        try:
            for _ in range(3):
                chance.shuffle(keys)
                with transaction.atomic():
                    handlers.index_latest.enqueue_many([((key,), {}) for key in keys])
                    transaction.set_rollback(is_undone)
        finally:
            connection.close()

    at_once(*(partial(enqueue, random.Random(place)) for place in range(4)))
    assert Task.objects.count() == (0 if is_undone else 1000)


def end_one_way_or_another(chance: random.Random) -> None:
    for one in claim(5):
        now = time.monotonic()
        way = chance.choice(["complete", "fail", "release"])
        if way == "release":
            release.release(connection, "w1", [(one.id, one.claimed_at())])
        else:
            failure = BROKEN if way == "fail" else None
            flush = completion.flush(
                connection, "w1", [Ending(one.id, one.version, one.attempt, now, now, failure=failure)]
            )
            assert flush.completed + flush.failed == 1


@pytest.mark.parametrize(
    ("size", "unique_while", "on_duplicate"),
    [
        ((8, 25, 2), "queued", "keep"),
        ((8, 25, 2), "active", "replace"),
        *(pytest.param(LONG, *options, marks=pytest.mark.chaos) for options in product(WHILE, ON_DUPLICATE)),
    ],
)
def test_a_worker_that_ends_the_task_between_their_looks_loses_none(size, unique_while, on_duplicate):
    """What is returned is a committed row; at no time have two tasks the key, and no ending is refused."""
    chance = random.Random(7)
    process = start(size, unique_while, on_duplicate)
    while process.poll() is None:
        end_one_way_or_another(chance)
    answer = report(process)
    connections.close_all()
    assert set(answer["ids"]) <= set(Task.objects.values_list("id", flat=True))
    holding = Task.objects.filter(unique_while=unique_while[0], status__in=("READY", "PROCESSING"))
    assert holding.count() <= 1
    assert Task.objects.filter(status__in=("COMPLETED", "FAILED")).exists()
