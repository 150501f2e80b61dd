"""Every claim strategy from end to end, each alone and then all on one table."""

from itertools import pairwise

import pytest

from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

STRATEGIES = ["skip_locked", "optimistic", "pessimistic"]
KEYS = ["red", "green", "blue"]


def enqueue_all(database, *, seconds=0.001):
    """60 tasks without a key, and 12 of each key; these as (key, id)."""
    with database.connection.transaction():
        database.enqueue(handlers.work, seconds, count=60)
        return [(key, database.enqueue(handlers.work, seconds, ordering_key=key)[0]) for key in KEYS * 12]


def assert_each_ran_once_and_keys_in_order(database, ledger, keyed):
    assert database.statuses() == {"COMPLETED": 96}
    effects = {effect.task_id: effect for effect in ledger.effects()}
    assert len(effects) == ledger.count() == 96
    for key in KEYS:
        of_key = [effects[task_id] for name, task_id in keyed if name == key]
        assert all(earlier.ended <= later.began for earlier, later in pairwise(of_key)), f"{key} ran out of order"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_task_runs_once_and_the_tasks_of_a_key_in_order(database, ledger, start_worker, strategy):
    keyed = enqueue_all(database)
    worker = start_worker("--strategy", strategy, "--concurrency", 3)
    database.wait_until_finished()
    assert_each_ran_once_and_keys_in_order(database, ledger, keyed)
    assert worker.stop() == 0
    assert worker.report() == {"claimed": 96, "completed": 96, "failed": 0, "refused": 0}


def test_strategies_share_one_table(database, ledger, start_worker):
    for strategy in STRATEGIES:
        start_worker("--strategy", strategy)

    def all_are_there():
        return database.value("SELECT count(DISTINCT strategy) FROM tasks_worker") == len(STRATEGIES)

    wait_until(all_are_there)
    met = database.enqueue(handlers.meet, len(STRATEGIES), count=len(STRATEGIES))
    database.wait_until_finished()
    assert len({effect.pid for effect in ledger.effects()}) == len(met), "one worker did it all"
    database.rows("DELETE FROM tasks_task")
    ledger.connection.execute("TRUNCATE effect")
    keyed = enqueue_all(database, seconds=0.01)
    database.wait_until_finished()
    assert_each_ran_once_and_keys_in_order(database, ledger, keyed)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_worker_takes_higher_priorities_first_and_then_in_order(database, ledger, start_worker, strategy):
    low = database.enqueue(handlers.work, count=5, priority=-5)
    normal = database.enqueue(handlers.work, count=5)
    high = database.enqueue(handlers.work, count=5, priority=5)
    assert start_worker("--strategy", strategy, "--burst").wait() == 0
    assert [effect.task_id for effect in ledger.effects()] == high + normal + low
