"""Limits while workers are killed, freeze and start again: the ledger of effects says how many really ran at once."""

import signal
import time
from datetime import timedelta
from functools import partial

import pytest

from tasks.models import Task
from tasks.queue import completion, strategies
from tasks.queue.claim import Claimer
from tasks.queue.completion import Ending
from tests.ledger import most_at_once, most_in_a_second
from tests.races.crew import at_once, worker_sessions
from tests.tasks import rows
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
LIMIT = 3
RATE = 50
SECONDS = 6
HOT = "UPDATE tasks_task SET concurrency_key = 'hot', concurrency_limit = %s"
RATED = "UPDATE tasks_task SET concurrency_key = 'r', rate_key = 'r', rate = %s, period_seconds = 1"
RUNNING = "SELECT count(*) FROM tasks_task WHERE status = 'PROCESSING'"


def test_never_more_than_the_limit_whatever_happens_to_workers(database, ledger, start_worker):
    database.enqueue(handlers.work, 0.1, count=150)
    database.rows(HOT, LIMIT)
    started = [start_worker("--concurrency", 3, ROWLOCK_LEASE_SECONDS=5) for _ in range(3)]
    died = {}

    def pids_at_work() -> set[int]:
        return {effect.pid for effect in ledger.effects() if effect.ended is None and effect.pid not in died}

    def end(worker, number) -> None:
        """The worker's processes do nothing any more once the signal has been sent."""
        pids = worker.members()
        worker.send_all(number)
        died.update(dict.fromkeys(pids, ledger.now()))

    def holder():
        return next((worker for worker in started if pids_at_work() & set(worker.members())), None)

    for number in (signal.SIGKILL, signal.SIGSTOP):
        worker = wait_until(holder)
        started.remove(worker)
        end(worker, number)
        since = time.monotonic()
        wait_until(lambda: len(pids_at_work()) == LIMIT or not database.value(RUNNING), seconds=60)
        print(f"{number.name}: all slots in use again after {time.monotonic() - since:.2f} s")
        started.append(start_worker("--concurrency", 3, ROWLOCK_LEASE_SECONDS=5))
        if number is signal.SIGSTOP:
            worker.send_all(signal.SIGKILL)  # else it would end its handlers beside those that took its slots
    database.wait_until_finished()
    assert most_at_once(ledger.effects(), died.get) == LIMIT
    assert len({effect.task_id for effect in ledger.effects()}) == 150


def test_a_limit_that_changes_while_tasks_run(database, ledger, start_worker):
    database.enqueue(handlers.work, 0.05, count=120)
    database.rows(HOT, LIMIT)
    start_worker("--concurrency", 6)
    wait_until(lambda: ledger.count() > 20)
    database.rows("INSERT INTO tasks_limit (key, max_running) VALUES ('hot', 1)")
    wait_until(lambda: database.value(RUNNING) == 1)
    lowered = ledger.now()
    wait_until(lambda: ledger.count() > 40)
    raised = ledger.now()
    database.rows("UPDATE tasks_limit SET max_running = 5")
    database.wait_until_finished()
    effects = ledger.effects()
    assert most_at_once([one for one in effects if lowered < one.began and one.ended < raised]) == 1
    assert LIMIT < most_at_once(effects) <= 5


@pytest.mark.parametrize("options", [("--concurrency", 4), ("--concurrency", 2, "--threads", 4)])
def test_a_rate_is_kept_by_all_workers_together(database, ledger, start_worker, options):
    database.enqueue(handlers.work, count=RATE * (SECONDS + 4))
    database.rows(RATED, RATE)
    start_worker(*options)
    first = wait_until(ledger.effects)[0].began
    wait_until(lambda: ledger.now() > first + timedelta(seconds=SECONDS))
    begun = [effect for effect in ledger.effects() if effect.began < first + timedelta(seconds=SECONDS)]
    print(f"{len(begun)} began in {SECONDS} s, at most {most_in_a_second(begun)} in one")
    assert RATE * SECONDS * 0.6 < len(begun) <= RATE * (SECONDS + 0.5) + 1
    assert most_in_a_second(begun) <= 2 * RATE


@pytest.mark.chaos
def test_a_rate_of_a_hundred_a_second_for_a_minute(database, ledger, start_worker):
    database.enqueue(handlers.work, count=7000)
    database.rows(RATED, 100)
    start_worker("--concurrency", 8)
    first = wait_until(ledger.effects)[0].began
    wait_until(lambda: ledger.now() > first + timedelta(seconds=60), seconds=90)
    begun = [effect for effect in ledger.effects() if effect.began < first + timedelta(seconds=60)]
    print(f"{len(begun)} began in a minute, at most {most_in_a_second(begun)} in one second")
    assert 5940 <= len(begun) <= 6060
    assert most_in_a_second(begun) <= 200


def test_claims_of_one_hot_key_meet_without_a_violation():
    """They give each other no errors to recover from, and leave no slot empty that a task could have."""
    rows.many(300, concurrency_key="hot", concurrency_limit=LIMIT)
    seen, errors = [], []

    def drain_hot(connection, worker_id) -> None:
        claimer, idle = Claimer(worker_id, at_once=2), 0
        while idle < 20:
            with connection.transaction():
                batch = strategies.claim(connection, claimer, 2)
                time.sleep(0.002)  # so that others claim before this one commits
            seen.append(connection.execute(RUNNING).fetchone()[0])
            now = time.monotonic()
            completion.flush(
                connection, worker_id, [Ending(one.id, one.version, one.attempt, now, now) for one in batch]
            )
            idle = 0 if batch else idle + 1
        errors.append(claimer.lost_races)

    with worker_sessions(4) as sessions:
        at_once(*(partial(drain_hot, session, f"w{number}") for number, session in enumerate(sessions)))
    assert (max(seen), sum(errors)) == (LIMIT, 0)
    assert Task.objects.completed().count() == 300
