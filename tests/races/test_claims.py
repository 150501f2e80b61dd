"""Many workers on one table, each with a strategy of its own: nothing is taken twice, and keys keep their order."""

import random
import threading
import time
from functools import partial

import pytest

from tasks.models import Task
from tests.races.crew import at_once, worker_sessions
from tests.races.drain import Ledger, drain
from tests.sessions import session
from tests.tasks import rows
from tests.tasks.claiming import STRATEGIES

pytestmark = pytest.mark.django_db(transaction=True)

QUEUES = ["a", "b", "c"]


@pytest.fixture
def ledger():
    return Ledger()


def enqueue(count: int, *, keys: int = 0) -> None:
    """Tasks over three queues and three priorities; with `keys` spread over so many ordering keys."""
    Task.objects.bulk_create(
        Task(
            task_path=rows.NOTHING,
            queue_name=QUEUES[number % 3],
            priority=number // 3 % 3,
            ordering_key=f"k{number % keys}" if keys else None,
        )
        for number in range(count)
    )


@pytest.mark.parametrize("mix", [[name] * 4 for name in STRATEGIES] + [STRATEGIES * 2], ids=" ".join)
def test_every_task_runs_once_and_keys_one_at_a_time_and_in_order(mix, ledger):
    enqueue(150)
    enqueue(150, keys=12)
    with worker_sessions(len(mix)) as connections:
        works = [
            partial(drain, connection, f"w{number}", ledger, strategy=strategy)
            for number, (connection, strategy) in enumerate(zip(connections, mix, strict=True))
        ]
        completed = at_once(*works)
    assert sum(completed) == Task.objects.completed().count() == 300
    assert (ledger.repeated(), ledger.overlaps(), ledger.inversions()) == ([], [], [])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_f06_workers_that_serve_their_queues_in_different_orders_do_not_deadlock(strategy, ledger):
    enqueue(400)
    with worker_sessions(6) as connections:
        works = [
            partial(drain, connection, f"w{number}", ledger, strategy=strategy, queues=random.sample(QUEUES, 3))
            for number, connection in enumerate(connections)
        ]
        assert sum(at_once(*works)) == 400
    assert ledger.repeated() == []


def test_f07_eight_workers_on_a_few_keys(ledger):
    enqueue(400, keys=5)
    with worker_sessions(8) as connections:
        at_once(*(partial(drain, connection, f"w{number}", ledger) for number, connection in enumerate(connections)))
    assert Task.objects.completed().count() == 400
    assert (ledger.repeated(), ledger.overlaps(), ledger.inversions()) == ([], [], [])


def test_f07_enqueuers_that_commit_late_cannot_make_two_of_a_key_run_at_once(ledger):
    """Order is by id among committed rows, so here it may be broken; one at a time must hold all the same."""
    done = threading.Event()

    def enqueue_and_commit_late(seed: int) -> None:
        chance = random.Random(seed)
        with session() as conn:
            for _ in range(150):
                key = f"k{chance.randrange(12)}"
                conn.execute("INSERT INTO tasks_task (task_path, ordering_key) VALUES ('a', %s)", [key])
                time.sleep(chance.uniform(0, 0.02))
                conn.commit()

    def enqueue_all() -> None:
        at_once(*(partial(enqueue_and_commit_late, seed) for seed in range(4)))
        done.set()

    with worker_sessions(6) as connections:
        works = [
            partial(drain, connection, f"w{number}", ledger, until=done, commit_seconds=0.005)
            for number, connection in enumerate(connections)
        ]
        at_once(enqueue_all, *works)
    assert Task.objects.completed().count() == 600
    assert (ledger.repeated(), ledger.overlaps()) == ([], [])


def test_f11_a_transaction_that_is_open_for_long_keeps_nobody_from_working(ledger):
    """Its snapshot holds every version of every row: none can be vacuumed, and claims step over them."""
    with session() as other, worker_sessions(4) as connections:
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT count(*) FROM tasks_task")
        for _ in range(4):
            enqueue(300, keys=20)
            at_once(*(partial(drain, connection, f"w{n}", ledger) for n, connection in enumerate(connections)))
        connections[0].execute("VACUUM tasks_task")
        assert Task.objects.completed().count() == 1200
        assert other.execute("SELECT count(*) FROM tasks_task").fetchone() == (0,)
    assert ledger.repeated() == []
