"""How much a process of several tasks claims: what its slots can begin, and no more than soon begins."""

import time

import pytest

from tasks.framework import declaration
from tasks.queue import strategies
from tasks.queue.claim import Claimer
from tasks.queue.completion import Ending
from tasks.queue.reports import Reports
from tasks.worker import pool as pools
from tasks.worker.options import Options
from tasks.worker.pool import Job, Pool
from tasks.worker.run import Runner
from tasks.worker.shared_state import SharedState
from tests.tasks.worker_app import pooled
from tests.tasks.worker_app import tasks as handlers


@pytest.fixture
def pool():
    """Two threads and four coroutines, in which nothing may begin: the test does it."""
    options = Options(threads=2, coroutines=4)
    state = SharedState(options.slots)
    return Pool(
        options,
        state,
        Runner("w1", Reports("w1"), lambda task_id: None),
        may_begin=lambda: False,
        note_end=lambda task, ending: None,
        unwritten=set,
        wake=lambda: None,
    )


@pytest.fixture
def claim(database):
    """Claims so many tasks of this handler."""

    def jobs(task, count):
        database.enqueue(task, count=count)
        claims = strategies.claim(database.connection, Claimer("w1"), count)
        return [Job(claim, declaration.get(claim.task_path), is_relaxed=False) for claim in claims]

    return jobs


def run_all(pool, kind, jobs, seconds):
    """Each job has taken so long, one after the other."""
    for job in jobs:
        kind.running[kind.free[-1]] = job
        job.slot = kind.free.pop()
        pool._end(kind, job, Ending(job.claim.id, 2, 1, 0.0, seconds))


def test_the_first_claim_is_for_one_task(pool):
    assert pool.room() == 1


def test_what_finds_no_slot_of_its_kind_is_given_back(pool, claim):
    jobs = claim(handlers.work, 5)
    assert pool.submit(jobs) == jobs[:1:-1]


def test_tasks_of_one_kind_do_not_count_slots_of_the_other(pool, claim):
    [job] = claim(handlers.work, 1)
    run_all(pool, pool.threads, [job], 60.0)
    pool.submit([])
    pool.threads.was_claimed = True
    assert pool.room() == 2


def test_coroutines_that_have_a_slot_are_claimed_together(pool, claim, monkeypatch):
    monkeypatch.setattr(pool, "_start_coroutines", lambda: None)  # else they are withdrawn at some moment
    assert pool.coroutines_at_once() == 0, "nothing is known yet about the next task"
    pool.submit(claim(pooled.rest, 3))
    assert pool.coroutines_at_once() == 1
    pool.submit(claim(handlers.work, 1))
    assert pool.coroutines_at_once() == 0, "the next tasks may want the processor"


@pytest.mark.parametrize(("seconds", "turns"), [(0.0012, 4), (0.004, 1), (0.006, 0)])
def test_so_are_those_that_get_a_slot_as_soon_as_anybody_could_claim_them(pool, claim, seconds, turns):
    jobs = claim(pooled.rest, 4)
    run_all(pool, pool.coroutines, jobs, seconds)
    pool.coroutines.was_claimed = True
    pool.room()
    assert pool.coroutines_at_once() == 4 + 4 * turns


def test_short_tasks_are_claimed_ahead_and_long_ones_are_not(pool, claim):
    jobs = claim(pooled.rest, 4)
    pool.coroutines.was_claimed = True
    run_all(pool, pool.coroutines, jobs, 0.01)
    assert pool.room() == 4 + int(pools.AHEAD_SECONDS * 4 / 0.01)
    run_all(pool, pool.coroutines, jobs, 2 * pools.SHORT_SECONDS)
    assert pool.room() == 4


def test_nothing_is_claimed_ahead_of_slots_that_are_held_for_long(pool, claim, monkeypatch):
    """Else the same tasks are claimed and given back over and over, and other workers hardly get one."""
    jobs = claim(handlers.work, 2)
    pool.threads.was_claimed = True
    run_all(pool, pool.threads, jobs, 0.001)
    now = time.monotonic()
    for job, began in zip(jobs, (now - 10, now), strict=True):
        job.slot, job.began = pool.threads.free.pop(), began
        pool.threads.running[job.slot] = job
    assert pool.room() == int(pools.AHEAD_SECONDS / 0.001), "one of them will be free soon"
    jobs[1].began = now - 10
    monkeypatch.setattr(pools.declaration, "has_coroutines", lambda: False)
    assert pool.room() == 0, "and now none"


def test_what_runs_is_quick_until_one_of_them_lasts(pool, claim):
    assert pool.is_quick()
    for job in claim(pooled.rest, 2):
        job.began = time.monotonic()
        pool.coroutines.running[job.claim.id] = job
        assert pool.is_quick()
    next(iter(pool.coroutines.running.values())).began -= pools.SHORT_SECONDS
    assert not pool.is_quick()
