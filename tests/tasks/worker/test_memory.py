"""A task takes all the memory that its process may have (`ulimit -v`): it fails, or its process does; nobody else."""

import resource

from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

BESIDE = 20
# A worker needs half of it when it has started.
MOST = 512 << 20


def test_a_task_that_eats_all_memory_fails_and_the_others_go_on(database, ledger, start_worker):
    worker = start_worker("--concurrency", 1)
    # It has not loaded anything yet, and its children inherit it.
    resource.prlimit(worker.pid, resource.RLIMIT_AS, (MOST, MOST))
    [greedy] = database.enqueue(handlers.eat_memory, MOST >> 20, max_attempts=2)
    others = database.enqueue(handlers.work, count=BESIDE)
    assert database.wait_for(greedy, "FAILED", seconds=120).attempt == 2
    assert set(database.outcomes(greedy)) <= {"failed", "abandoned"}
    wait_until(lambda: database.statuses() == {"COMPLETED": BESIDE, "FAILED": 1}, seconds=60)
    ran = [effect.task_id for effect in ledger.effects()]
    assert sorted(ran) == sorted([greedy, greedy, *others])
    assert worker.stop() == 0
