"""Beside an open transaction the index of claimed rows keeps all that were claimed: nobody walks them often."""

import os
import signal
import time

import psycopg
import pytest
from django.db import connections

from tasks.queue import presence, recovery, release, shortcut
from tasks.queue.claim import Claimer
from tasks.queue.shortcut import CLAIM_PLAIN, Shortcut
from tasks.support.database import WORKER_SESSION
from tasks.worker import fetch, maintenance
from tasks.worker.leader import LeaderToken
from tasks.worker.options import Options, register
from tasks.worker.process import WorkerProcess
from tasks.worker.shared_state import Allowance, SharedState
from tasks.worker.supervisor import Supervisor
from tests.chaos import aged
from tests.chaos.soak import forgotten_transaction
from tests.tasks.plans import explain
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

CLAIMED = 20_000
CLAIM = """
INSERT INTO tasks_task (task_path, status, claimed_by, started_at, attempt)
SELECT 'a', 'PROCESSING', 'w1', now(), 1 FROM generate_series(1, %s)
"""
COMPLETE = """
UPDATE tasks_task SET status = 'COMPLETED', claimed_by = NULL, finished_at = now() WHERE id > %s
"""
ENDED = "SELECT count(*) FROM tasks_task WHERE status = 'COMPLETED' AND attempt = 1"
WHO = "SELECT finished_by, count(*) FROM tasks_task GROUP BY finished_by"


def pages(plan):
    return plan.node["Shared Hit Blocks"] + plan.node["Shared Read Blocks"]


def test_requests_to_cancel_are_found_by_the_ids_that_are_held(database):
    with forgotten_transaction(database.url), psycopg.connect(database.url, options=WORKER_SESSION) as session:
        database.rows(CLAIM, CLAIMED)
        [held] = database.rows("SELECT min(id) AS id FROM tasks_task")
        database.rows(COMPLETE, held.id)
        database.rows("UPDATE tasks_task SET cancel_requested_at = now() WHERE id = %s", held.id)
        params = {"ids": ["w1"], "held": [held.id]}
        assert session.execute(maintenance.REQUESTS, params).fetchall() == [("w1", held.id, 1)]
        by_id = explain(session, maintenance.REQUESTS, params, mode=None)
        all_held = explain(session, release.UNLISTED, {"worker_id": "w1", "ids": []}, mode=None)
        assert 10 * pages(by_id) < pages(all_held)


def test_a_claim_from_the_front_passes_the_dead_rows_once(database):
    with forgotten_transaction(database.url), psycopg.connect(database.url, options=WORKER_SESSION) as session:
        database.enqueue(handlers.quick, count=CLAIMED)
        database.rows(COMPLETE, 0)
        database.enqueue(handlers.quick)
        once = explain(session, aged.FRONT, {}, mode=None)
        claim = explain(session, CLAIM_PLAIN, Claimer("w1").params(1), mode=None)
        assert claim.rows_changed() == 1
        assert pages(claim) < 1.5 * pages(once)


def joins(database, worker_id):
    with psycopg.connect(database.url) as session:
        register(session, worker_id, Options())


@pytest.fixture
def slow(monkeypatch):
    """Each question who holds rows counts as slow."""
    monkeypatch.setattr(presence, "SLOW_SECONDS", -1)
    monkeypatch.setattr(presence, "TIMES_AS_LONG", 1e9)


@pytest.mark.usefixtures("slow")
class TestWhoIsKnown:
    @pytest.fixture
    def ids(self, database):
        """Lists the ids that a sweeper knows which has asked once."""
        known_ids = presence.KnownIds()
        joins(database, "early")
        database.rows(CLAIM, 1)
        assert set(known_ids(database.connection)) == {"early", "w1"}
        return lambda: set(known_ids(database.connection))

    def test_after_a_slow_question_holders_are_not_looked_for(self, database, ids):
        database.rows(CLAIM.replace("w1", "w2"), 1)
        assert ids() == {"early", "w1"}

    def test_workers_that_have_not_stopped_are(self, database, ids):
        joins(database, "late")
        assert ids() == {"early", "late", "w1"}

    def test_who_stops_meanwhile_may_still_hold_rows(self, database, ids):
        joins(database, "late")
        ids()
        database.rows("UPDATE tasks_worker SET stopped_at = now()")
        assert ids() == {"early", "late", "w1"}

    @pytest.mark.parametrize("name", ["SLOW_SECONDS", "TIMES_AS_LONG"])
    def test_after_a_quick_question_they_are_looked_for_each_time(self, database, monkeypatch, name):
        monkeypatch.setattr(presence, name, 60 if name == "SLOW_SECONDS" else 0)
        known_ids = presence.KnownIds()
        assert known_ids(database.connection) == []
        database.rows(CLAIM, 1)
        assert known_ids(database.connection) == ["w1"]
        database.rows(COMPLETE, 0)
        assert known_ids(database.connection) == []

    def test_a_statement_that_met_its_timeout_was_slow(self, database):
        known_ids = presence.KnownIds()
        joins(database, "early")
        with psycopg.connect(database.url) as other, psycopg.connect(database.url, autocommit=True) as sweeper:
            other.execute("LOCK TABLE tasks_task")
            sweeper.execute("SET lock_timeout = '50ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                known_ids(sweeper)
            assert known_ids(sweeper) == ["early"]


def test_a_sweep_asks_as_it_is_told(database):
    database.rows(CLAIM, 1)
    assert recovery.sweep(database.connection, known_ids=lambda connection: []).rows == []
    assert len(recovery.sweep(database.connection).rows) == 1


@pytest.fixture
def worn_out_soon(monkeypatch):
    """Each check is slow, and a hundred tasks are many."""
    for name, value in (("CHECK_SECONDS", 0), ("SLOW_CHECKS", 1), ("SLOW_CHECK_SECONDS", -1), ("MANY_CLAIMS", 100)):
        monkeypatch.setattr(fetch, name, value)


def finish(database, count, **options):
    """Let a supervisor of one process complete so many tasks; how many each worker has completed."""
    connections.close_all()  # else the supervisor would end this process's session
    pid = os.fork()
    if pid == 0:
        os._exit(Supervisor(Options(**options)).run())
    try:
        wait_until(lambda: database.value(ENDED) >= count)
    finally:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
    return {row.finished_by: row.count for row in database.rows(WHO)}


@pytest.mark.usefixtures("worn_out_soon")
@pytest.mark.parametrize("options", [{}, {"threads": 2}], ids=str)
def test_a_worker_whose_rows_cannot_be_cleaned_up_ends_and_another_takes_its_place(settings, database, options):
    settings.ROWLOCK = {"DIRECT_DATABASE_URL": database.url}
    database.enqueue(handlers.quick, count=500)
    ran = finish(database, 500, batch_size=50, **options)
    assert len(ran) >= 3
    assert max(ran.values()) <= 200, "the last batch before it is noticed belongs to it"


@pytest.mark.usefixtures("worn_out_soon")
@pytest.mark.parametrize("options", [{"burst": True}, {"max_tasks": 500}], ids=str)
def test_but_not_one_that_nobody_would_replace(settings, database, options):
    settings.ROWLOCK = {"DIRECT_DATABASE_URL": database.url}
    database.enqueue(handlers.quick, count=500)
    assert len(finish(database, 500, batch_size=50, **options)) == 1


@pytest.fixture
def worker(settings, database):
    """A worker process that claims here, under its own session."""
    settings.ROWLOCK = {"DIRECT_DATABASE_URL": database.url}
    lifeline, busy = os.pipe()
    worker = WorkerProcess("w1", Options(), SharedState(), Allowance(None), LeaderToken(), lifeline=lifeline, busy=busy)
    worker.state.renew_lease()
    assert worker.session.open(lambda connection: register(connection, "w1", Options()))
    yield worker
    worker.leave()
    for descriptor in (lifeline, busy, worker.wake_read, worker.wake_write):
        os.close(descriptor)


@pytest.mark.parametrize("is_tedious", [True, False], ids=["tedious", "quick"])
def test_before_a_tedious_walk_the_leader_makes_way(worker, is_tedious):
    """New tasks would wait for its end beside an idle worker."""
    assert worker.token.take(worker.state)
    worker.fetcher.claimer.shortcut = Shortcut({}, until=0.0, is_tedious=is_tedious)
    assert worker.next_batch() == []
    assert worker.token.is_free == is_tedious


def test_a_worker_that_starts_while_walks_fail_begins_without_one(database, worker, monkeypatch):
    """Another process of its supervisor has told."""
    if (other := os.fork()) == 0:
        worker.allowance.walks.next_at = time.monotonic() + 60
        os._exit(0)
    os.waitpid(other, 0)
    monkeypatch.setattr(shortcut, "_claim_from_front", pytest.fail)
    [task_id] = database.enqueue(handlers.quick)
    assert [claim.id for claim in worker.next_batch()] == [task_id]
