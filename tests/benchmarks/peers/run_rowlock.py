"""Rowlock's own part of the verbs of `subject.py`, as a Django project calls it; `run_worker` is started as it is."""

import itertools
import os
import sys
import time

import django

django.setup()

from django.db import connection, transaction  # noqa: E402

from tasks.queue.claim import Claimer  # noqa: E402
from tasks.queue.strategies import claim as claims_of  # noqa: E402
from tasks.support.database import connect_directly  # noqa: E402
from tests.benchmarks.handlers.tasks import debounced, noop, pause, unique  # noqa: E402
from tests.benchmarks.peers import wire  # noqa: E402

numbers = itertools.count()


def send() -> None:
    connection.ensure_connection()
    for line in sys.stdin:
        number, milliseconds = map(int, line.split())
        wire.sent(number, time.monotonic())
        pause.enqueue(number, milliseconds)


def claim(claims: str) -> None:
    """Claims one task after the other and tells the mean of their seconds; no commit waits for the disk."""
    claimer = Claimer("bench")
    with connect_directly("bench") as session:  # with the settings of a worker's session
        session.execute("SET synchronous_commit = off")
        began = time.perf_counter()
        for _ in range(int(claims)):
            assert claims_of(session, claimer, 1)
        took = time.perf_counter() - began
        session.execute("DELETE FROM tasks_task WHERE claimed_by = 'bench'")
    wire.tell("claimed", took / int(claims))


def one_in_a_transaction() -> int:
    with transaction.atomic():
        noop.using(queue_name="idle").enqueue()
    return 1


def one() -> int:
    noop.using(queue_name="idle").enqueue()
    return 1


def a_thousand() -> int:
    return len(noop.using(queue_name="idle").enqueue_many([((), {})] * 1000))


def one_with_a_fresh_key() -> int:
    unique.enqueue(f"{os.getpid()}-{next(numbers)}")
    return 1


def one_with_the_same_key() -> int:
    unique.enqueue("hot")
    return 1


def one_that_replaces() -> int:
    debounced.enqueue("hot")
    return 1


HOWS = {
    "single": one,
    "transaction": one_in_a_transaction,
    "bulk": a_thousand,
    "fresh": one_with_a_fresh_key,
    "same": one_with_the_same_key,
    "replace": one_that_replaces,
}


def enqueue(how: str, seconds: str) -> None:
    once = HOWS[how]
    once()
    wire.ready()
    began, enqueued = time.monotonic(), 0
    while time.monotonic() - began < float(seconds):
        enqueued += once()
    wire.rate(enqueued, began)


if __name__ == "__main__":
    {"send": send, "enqueue": enqueue, "claim": claim}[sys.argv[1]](*sys.argv[2:])
