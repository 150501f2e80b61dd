"""Recovery among everything else that happens at once: nothing is taken back twice, nobody living is convicted, and
no two of them wait for each other.
"""

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing, nullcontext
from datetime import timedelta
from functools import partial
from typing import TypeVar

import pytest
from django.db import connection, connections

from tasks import operations
from tasks.models import Attempt, RefusedWrite, Task, Worker
from tasks.operations import Settings
from tasks.operations.filters import TaskFilter
from tasks.queue import completion, presence, recovery
from tasks.queue import strategies as claims
from tasks.queue.claim import Claim, Claimer
from tasks.queue.completion import Ending, Failure
from tasks.support.audit import Who
from tasks.support.database import connect_directly
from tests.races.crew import again_and_again, at_once, until, worker_sessions
from tests.tasks import rows
from tests.tasks.claiming import STRATEGIES
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
T = TypeVar("T")
ANNA = Who("anna", "command")
LIVES = 20  # of each of four at once
REGISTER = "INSERT INTO tasks_worker (id, hostname, pid) VALUES (%s, 'host', 1)"
EDIT = "UPDATE tasks_task SET priority = 1 WHERE id = (SELECT max(id) FROM tasks_task WHERE id %% 7 = %s)"
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


@pytest.mark.parametrize(
    "functions", [[recovery.sweep] * 8, [recovery.sweep, recovery.recover] * 4], ids=["sweeps", "sweeps and people"]
)
def test_f08_many_at_once_take_each_task_back_once(functions):
    worker = rows.dead_worker()
    tasks = [rows.processing(worker).pk for _ in range(200)]
    with worker_sessions(8) as connections_:
        works = [partial(function, conn, limit=60) for function, conn in zip(functions, connections_, strict=True)]
        sweeps = [swept for _ in range(6) for swept in at_once(*works)]
    taken = sorted(task_id for swept in sweeps for task_id in swept.requeued)
    assert taken == tasks
    assert Attempt.objects.filter(outcome="abandoned").count() == len(tasks)


def test_f15_workers_that_are_being_born_are_never_convicted():
    """Each is there for a moment only: it takes its presence, registers, works and leaves in order."""
    rows.many(2000)
    numbers, over = itertools.count(), threading.Event()

    def live() -> None:
        worker_id = f"w{next(numbers)}"
        with closing(connect_directly(f"rowlock:worker:{worker_id}")) as conn:
            assert presence.take(conn, worker_id)
            conn.execute(REGISTER, [worker_id])
            assert presence.confirm(conn, worker_id)
            for _ in range(3):
                complete(conn, worker_id, claims.claim(conn, Claimer(worker_id), 5))
            conn.execute("UPDATE tasks_worker SET stopped_at = clock_timestamp() WHERE id = %s", [worker_id])

    def live_all() -> None:
        try:
            at_once(*[lambda: [live() for _ in range(LIVES)]] * 4)
        finally:
            over.set()

    with worker_sessions(2) as sweepers:
        at_once(live_all, *(until(over, partial(recovery.sweep, conn)) for conn in sweepers))
    assert Worker.objects.count() == 4 * LIVES
    assert not Worker.objects.filter(stop_reason="convicted").exists()
    assert (RefusedWrite.objects.count(), Attempt.objects.count()) == (0, 0)


def complete(conn, worker_id: str, batch: list[Claim], *, failing: float = 0.0) -> None:
    now = time.monotonic()
    failure = Failure("builtins.ValueError", "", 0.0)
    endings = [
        Ending(made.id, made.version, made.attempt, now, now, failure=failure if random.random() < failing else None)
        for made in shuffled(batch)
    ]
    completion.flush(conn, worker_id, endings)


def shuffled(things: Iterable[T]) -> list[T]:
    """Whoever locks in an order of its own finds out who waits for whom."""
    things = list(things)
    random.shuffle(things)
    return things


class Bustle:
    """Everything that touches the queue, each a short piece of work to be repeated."""

    def __init__(self) -> None:
        self.numbers = itertools.count()
        self.taken_back: list[int] = []  # the attempts that tell of it are pruned with their tasks

    def enqueue(self) -> None:
        Task.objects.bulk_create(
            Task(
                task_path=rows.NOTHING,
                queue_name=f"q{number % 2}",
                ordering_key=f"k{number % 5}" if number % 3 == 0 else None,
                max_attempts=3,
            )
            for number in range(20)
        )

    def work(self, conn, worker_id: str, strategy: str) -> None:
        """Two batches, the flush of the first together with the claim of the second where a worker does that."""
        claimer = Claimer(worker_id, shuffled(["q0", "q1"]))
        first = claims.claim(conn, claimer, 10, strategy)
        with conn.transaction() if claims.STRATEGIES[strategy].joins_flush else nullcontext():
            complete(conn, worker_id, first, failing=0.3)
            second = claims.claim(conn, claimer, 10, strategy)
        complete(conn, worker_id, second, failing=0.3)

    def die(self, conn) -> None:
        """Claim as a worker that loses its presence; and finishes half of it late all the same."""
        worker_id = f"mortal{next(self.numbers)}"
        conn.execute(REGISTER, [worker_id])
        presence.confirm(conn, worker_id)
        batch = claims.claim(conn, Claimer(worker_id), 20)
        time.sleep(random.uniform(0, 2 * presence.SECOND_LOOK_SECONDS))
        complete(conn, worker_id, batch[::2])

    def sweep(self, conn) -> None:
        self.taken_back += recovery.sweep(conn).requeued

    def beat(self, conn) -> None:
        presence.beat(conn, shuffled(presence.known_ids(conn)))

    def operate(self) -> None:
        operations.requeue(TaskFilter(statuses=("FAILED",)), ANNA)
        operations.edit(TaskFilter(statuses=("READY",)), ANNA, Settings(priority=random.randrange(3)))
        operations.prune_tasks(timedelta(0), ANNA)

    def edit_by_hand(self, conn) -> None:
        conn.execute(EDIT, [random.randrange(7)])


def test_f06_everything_at_once_and_no_deadlock():
    bustle, deadlocks_before = Bustle(), count_deadlocks()
    strategies = STRATEGIES * 2
    with worker_sessions(10 + len(strategies)) as (*others, registrar, hand):
        for number in range(len(strategies)):
            registrar.execute(REGISTER, [f"w{number}"])
        session = iter(others)
        works = [
            bustle.enqueue,
            *[bustle.operate] * 2,
            *(partial(bustle.die, next(session)) for _ in range(4)),
            *(partial(bustle.beat, next(session)) for _ in range(2)),
            *(partial(bustle.sweep, next(session)) for _ in range(2)),
            *(partial(bustle.work, next(session), f"w{number}", name) for number, name in enumerate(strategies)),
            partial(bustle.edit_by_hand, hand),
        ]

        def somebody_was_late() -> bool:
            at_once(*(closing_connections(again_and_again(work, 3)) for work in works))
            return bool(bustle.taken_back) and RefusedWrite.objects.exists()

        wait_until(somebody_was_late, seconds=120)
    assert count_deadlocks() == deadlocks_before


def closing_connections(work: Callable[[], T]) -> Callable[[], T]:
    """Django's connection of a thread outlives it otherwise."""

    def run() -> T:
        try:
            return work()
        finally:
            connections.close_all()

    return run


def count_deadlocks() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(DEADLOCKS)
        return cursor.fetchone()[0]
