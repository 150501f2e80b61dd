"""Operators under load: two at one row in the same moment, and one at all rows while workers and others want them."""

import json
import os
import random
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest
from django.db import connection, connections

from tasks import operations
from tasks.models import BulkRun, Intervention, Task
from tasks.operations import Result, Settings, bulk
from tasks.operations.filters import TaskFilter
from tasks.support.audit import Who
from tests import processes
from tests.commands import database_url
from tests.processes import Worker
from tests.races.crew import at_once
from tests.tasks import rows
from tests.tasks.worker_app.tasks import quick
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
ANNA, BOB = Who("anna", "page"), Who("bob", "page")
QUEUES = ("--queue", "live", "--queue", "first", "--queue", "rowlock")
CHUNK = 1000  # rows that an action changes in one transaction
MEASURED_ROWS = int(os.environ.get("CHAOS_ROWS", "100000"))

OLD_ROWS = """
INSERT INTO tasks_task (task_path, queue_name, status, attempt, finished_at)
SELECT 'tests.tasks.worker_app.tasks.quick', 'old', %(status)s, 1,
    CASE %(status)s WHEN 'FAILED' THEN statement_timestamp() END
FROM generate_series(1, %(rows)s)
"""
# The transaction that wrote a row last is that of its chunk.
LARGEST_TRANSACTION = """
SELECT max(number) FROM (SELECT count(*) AS number FROM tasks_task WHERE id = ANY(%s) GROUP BY xmin) AS written
"""
WAITS = """
SELECT percentile_disc(ARRAY[0.5, 0.99, 1]) WITHIN GROUP (ORDER BY extract(epoch FROM started_at - run_after)::float8)
FROM tasks_task WHERE queue_name = 'live'
"""
# action, status of the rows before, what is asked for, status and queue of the rows afterwards
ACTIONS = {
    "requeue": ("FAILED", Settings(spread_minutes=60), "READY", "old"),
    "cancel": ("READY", Settings(reason="flood"), "CANCELLED", "old"),
    "edit": ("READY", Settings(queue_name="elsewhere"), "READY", "elsewhere"),
}


def test_of_a_requeue_and_a_cancel_at_the_same_moment_one_is_done() -> None:
    """Both saw the same version. Without its check both would be done, one after the other."""
    for _ in range(25):
        task = rows.failed()
        seen = {task.pk: task.version}

        def requeue(seen: dict[int, int] = seen) -> Result:
            return in_own_session(lambda: operations.requeue(list(seen), ANNA, versions=seen))

        def cancel(seen: dict[int, int] = seen) -> Result:
            return in_own_session(lambda: operations.cancel(list(seen), BOB, versions=seen))

        requeued, cancelled = at_once(requeue, cancel)
        assert len(requeued.done) + len(cancelled.done) == 1
        assert {refusal.code for refusal in (requeued.refused | cancelled.refused).values()} <= {"changed", "locked"}
        after = Task.objects.get(pk=task.pk)
        assert (after.status, after.version) == ("READY" if requeued.done else "CANCELLED", task.version + 1)
        assert Intervention.objects.get(target=f"task:{task.pk}").actor == ("anna" if requeued.done else "bob")


def in_own_session(act) -> Result:
    try:
        return act()
    finally:
        connections.close_all()


@pytest.fixture
def worker() -> Iterator[Worker]:
    """Two processes: one is busy with the run, the other one serves what else there is."""
    started = [processes.start_worker(database_url(), database_url(), "--concurrency", 2, *QUEUES)]
    with processes.ended_at_last(started):
        yield started[0]


def test_an_action_on_everything_keeps_nobody_waiting(worker: Worker) -> None:
    """Committed as a whole, its first row would be locked for as long as the action takes."""
    assert measured("requeue", 20_000, worker)["most_rows_of_a_transaction"] <= CHUNK


@pytest.mark.chaos
@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_on_a_hundred_thousand_rows_holds_a_thousand_at_a_time(worker: Worker, action: str) -> None:
    """How long others waited for a row is printed."""
    assert measured(action, MEASURED_ROWS, worker)["most_rows_of_a_transaction"] <= CHUNK


def measured(action: str, number: int, worker: Worker) -> dict[str, object]:
    """Carry out the action on so many rows; how long it took, and what others waited meanwhile."""
    before, settings, status, queue = ACTIONS[action]
    with connection.cursor() as cursor:
        cursor.execute(OLD_ROWS, {"status": before, "rows": number})
        cursor.execute("ANALYZE tasks_task")
    ids = list(Task.objects.filter(queue_name="old").values_list("id", flat=True))
    quick.using(queue_name="first").enqueue()  # the worker has started
    wait_until(lambda: Task.objects.completed().exists(), seconds=60)
    over, waits = threading.Event(), [0.0]
    locker = threading.Thread(target=lock_again_and_again, args=(ids, over, waits))
    locker.start()
    try:
        run_id = bulk.request(action, TaskFilter(queue_names=("old",)), max(ids), settings, ANNA, "a" * 32)
        wait_until(lambda: goes_on(run_id), seconds=300, every=0.05)
    finally:
        over.set()
        locker.join()
    run = BulkRun.objects.get(pk=run_id)
    assert (run.looked, run.done + run.refused) == (number, number)
    assert (
        Task.objects.filter(pk__in=ids[:: number // 1000], status=status, queue_name=queue).count()
        >= 1000 - run.refused
    )
    wait_until(lambda: not Task.objects.filter(queue_name="live").unfinished().exists())
    with connection.cursor() as cursor:
        cursor.execute(WAITS)
        [pickups] = cursor.fetchone()
        cursor.execute(LARGEST_TRANSACTION, [ids])
        [most_rows] = cursor.fetchone()
    found = {
        "action": action,
        "rows": number,
        "seconds": round((run.finished_at - run.started_at).total_seconds(), 2),
        "most_rows_of_a_transaction": most_rows,
        "locked_by_others": run.refused,
        "longest_wait_for_a_row_ms": round(1000 * max(waits), 1),
        "locks_taken_meanwhile": len(waits) - 1,
        "pickup_ms": [round(1000 * seconds, 1) for seconds in pickups],
    }
    print(json.dumps(found))
    return found


def goes_on(run_id: int) -> bool:
    """Something else is enqueued at each look; whether the run is over."""
    quick.using(queue_name="live").enqueue()
    return BulkRun.objects.get(pk=run_id).finished_at is not None


def lock_again_and_again(ids: list[int], over: threading.Event, waits: list[float]) -> None:
    """A session that wants one row after the other, any of them, and notes in seconds how long it waited."""
    chance = random.Random(0)
    with psycopg.connect(database_url(), autocommit=True) as session:
        while not over.wait(0.005):
            began = time.monotonic()
            session.execute("SELECT FROM tasks_task WHERE id = %s FOR NO KEY UPDATE", [chance.choice(ids)])
            waits.append(time.monotonic() - began)
