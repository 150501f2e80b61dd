"""Real outages of a real server: every presence is lost at once, and nobody is convicted for that."""

import contextlib

import psycopg
import pytest

from tasks.queue import presence, recovery
from tasks.queue.presence import Life
from tests import databases, outages
from tests.waiting import wait_until

ALL_SESSIONS_LOST = {"restart": outages.restart, "crashed backend": outages.crash_one_backend}
REGISTER = "INSERT INTO tasks_worker (id, hostname, pid, lease_seconds) VALUES (%s, 'host', 1, 30)"
WORK = """
INSERT INTO tasks_task (task_path, status, attempt, version, claimed_by)
VALUES ('a', 'PROCESSING', 1, 2, %s) RETURNING id
"""
SOON = "UPDATE tasks_epoch SET first_seen_at = first_seen_at - make_interval(secs => %s)"


@pytest.fixture
def database(breakable_server):
    with databases.copy_of(databases.named(breakable_server.url, "rowlock_template")) as database:
        presence.see_epoch(database.connection)
        yield database


@pytest.fixture(params=ALL_SESSIONS_LOST)
def lose_all_sessions(request, breakable_server, database):
    return lambda: ALL_SESSIONS_LOST[request.param](breakable_server, database)


@contextlib.contextmanager
def present(database, worker_id):
    """A session that holds the worker's presence, confirmed."""
    name = f"rowlock:worker:{worker_id}"
    with contextlib.closing(psycopg.connect(database.url, autocommit=True, application_name=name)) as conn:
        assert presence.take(conn, worker_id)
        assert presence.confirm(conn, worker_id)
        yield conn


def born(database, worker_id) -> int:
    """A worker's row and a task that it works on."""
    database.rows(REGISTER, worker_id)
    return database.value(WORK, worker_id)


def state(database, worker_id):
    return presence.states([worker_id], database.connection)[worker_id]


def sweep_thrice(database) -> list[recovery.Sweep]:
    """More looks than convict, each long enough after the one before."""
    sweeps = []
    for _ in range(3):
        sweeps.append(recovery.sweep(database.connection))
        database.rows("SELECT pg_sleep(%s)", presence.SECOND_LOOK_SECONDS + 0.01)
    return sweeps


def test_an_outage_that_takes_every_session_convicts_nobody(database, lose_all_sessions):
    born(database, "w1")
    with present(database, "w1"):
        before = state(database, "w1").epoch
        lose_all_sessions()
    assert state(database, "w1").epoch != before
    for swept in sweep_thrice(database):
        assert (swept.suspects, swept.dead, swept.rows) == ([], [], [])
        assert [waiting.id for waiting in swept.waiting] == ["w1"]
    assert state(database, "w1").life is Life.RESTARTED


def test_who_comes_back_under_its_id_is_alive_and_loses_nothing(database, lose_all_sessions):
    born(database, "w1")
    with present(database, "w1"):
        lose_all_sessions()
    with present(database, "w1"):
        assert state(database, "w1").life is Life.ALIVE
        assert [swept.rows for swept in sweep_thrice(database)] == [[], [], []]


def test_the_grace_is_one_lease_from_when_the_new_epoch_was_first_seen(database, lose_all_sessions):
    task_id = born(database, "w1")
    with present(database, "w1"):
        lose_all_sessions()
    database.rows("UPDATE tasks_worker SET heartbeat_at = heartbeat_at - interval '1 hour'")
    assert state(database, "w1").life is Life.RESTARTED, "nobody has seen the epoch yet"
    recovery.sweep(database.connection)
    database.rows(SOON, 25)
    assert recovery.sweep(database.connection).rows == []
    database.rows(SOON, 10)
    assert recovery.sweep(database.connection).requeued == [task_id]


def test_a_worker_of_the_new_epoch_is_convicted_in_two_looks(database, lose_all_sessions):
    born(database, "old")
    with present(database, "old"):
        lose_all_sessions()
    task_id = born(database, "new")
    with present(database, "new"):
        assert recovery.sweep(database.connection).suspects == []
    wait_until(lambda: not state(database, "new").held)
    first, second, _ = sweep_thrice(database)
    assert (first.suspects, first.dead) == (["new"], [])
    assert (second.dead, second.requeued) == (["new"], [task_id])
    assert state(database, "old").life is Life.RESTARTED


def test_the_end_of_one_session_is_no_new_epoch(database):
    born(database, "w1")
    before = state(database, "w1").epoch
    with present(database, "w1") as conn:
        database.rows("SELECT pg_terminate_backend(%s)", conn.info.backend_pid)
        wait_until(lambda: not state(database, "w1").held)
    after = state(database, "w1")
    assert (after.epoch, after.life) == (before, Life.MISSING)


RESET = "SELECT pg_stat_reset_shared('bgwriter')"


def test_statistics_that_are_reset_begin_one_in_which_the_living_are_confirmed_by_a_sweep(database):
    """Nothing was lost, and the next death is seen at once as before."""
    task_id = born(database, "w1")
    with present(database, "w1"):
        before = state(database, "w1").epoch
        database.rows(RESET)
        wait_until(lambda: state(database, "w1").epoch != before)
        swept = recovery.sweep(database.connection)
        assert (swept.suspects, swept.dead, swept.waiting) == ([], [], [])
        seen = state(database, "w1")
        assert (seen.life, seen.presence_epoch) == (Life.ALIVE, seen.epoch)
    wait_until(lambda: not state(database, "w1").held)
    first, second, _ = sweep_thrice(database)
    assert (first.suspects, first.dead) == (["w1"], [])
    assert (second.dead, second.requeued) == (["w1"], [task_id])


def test_an_outage_after_they_were_reset_convicts_nobody_either(database, lose_all_sessions):
    born(database, "w1")
    with present(database, "w1"):
        before = state(database, "w1").epoch
        database.rows(RESET)
        wait_until(lambda: state(database, "w1").epoch != before)
        recovery.sweep(database.connection)
        lose_all_sessions()
    assert [(swept.suspects, swept.dead) for swept in sweep_thrice(database)] == [([], [])] * 3
    assert state(database, "w1").life is Life.RESTARTED


def test_who_never_took_presence_is_not_confirmed_by_others(database):
    """It is registered first: nothing is known of its lock before it says so itself."""
    born(database, "w1")
    name = "rowlock:worker:w1"
    with contextlib.closing(psycopg.connect(database.url, autocommit=True, application_name=name)) as conn:
        assert presence.take(conn, "w1")
        recovery.sweep(database.connection)
    assert state(database, "w1").presence_epoch is None


def test_a_clean_restart_is_one(database, breakable_server):
    """Statistics outlive it, so the start of the server must count too."""
    born(database, "w1")
    before = state(database, "w1").epoch
    breakable_server.restart()
    database.close()
    assert state(database, "w1").epoch != before
