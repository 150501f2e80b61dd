"""A burst ends when nothing is due, and not while something waits for what its worker has not written yet."""

import os
import re

import psycopg
import pytest

from tasks.queue.completion import Ending
from tasks.worker.complete import SEND_FROM
from tasks.worker.fetch import MUCH_WORK
from tasks.worker.leader import LeaderToken
from tasks.worker.options import Options
from tasks.worker.process import WorkerProcess
from tasks.worker.shared_state import Allowance, SharedState
from tests.tasks.worker_app import tasks as handlers


@pytest.fixture
def child(database):
    read, write = os.pipe()
    child = WorkerProcess(
        "w1", Options(burst=True), SharedState(), Allowance(None), LeaderToken(), lifeline=read, busy=write
    )
    child.state.renew_lease()
    with psycopg.connect(database.url, autocommit=True) as child.session.connection:
        child.session.is_ready = True
        child.fetcher.size.value = child.fetcher.size.ramp = SEND_FROM
        yield child
    for end in (read, write, child.wake_read, child.wake_write):
        os.close(end)


def test_the_next_task_of_a_key_is_claimed_once_the_one_before_it_is_written(database, child):
    database.enqueue(handlers.quick, count=SEND_FROM - 1)
    first, second = database.enqueue(handlers.quick, count=2)
    database.rows("UPDATE tasks_task SET ordering_key = 'k' WHERE id = ANY(%s)", [first, second])
    batch = child.fetcher.next_batch()
    assert first in {claim.id for claim in batch}
    assert len(batch) == SEND_FROM
    for claim in batch:
        child.completer.add(Ending(claim.id, claim.version, claim.attempt, 0.0, 0.0))
    child.fetcher.full_claims = MUCH_WORK
    assert [claim.id for claim in child.fetcher.next_batch()] == [second]


def test_a_healthy_burst_has_nothing_to_warn_of(database, start_worker):
    """On one session and, with much to do, on two; the log has lines of INFO and below alone."""
    database.fill(handlers.quick, 10_000)
    worker = start_worker("--burst", "--concurrency", 2)
    assert worker.wait() == 0
    assert database.statuses() == {"COMPLETED": 10_000}
    assert not re.search(r"\b(WARNING|ERROR|CRITICAL)\b|error ignored", worker.log()), worker.log()
