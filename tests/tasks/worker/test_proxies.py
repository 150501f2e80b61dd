"""A transaction-pooling proxy before the database (fault F10): a real PgBouncer, with and without a way past it."""

import signal
from contextlib import closing

import psycopg
import pytest

from tasks import checks
from tasks.exceptions import PooledSession
from tasks.queue import presence
from tasks.support import database as pooling
from tests.pgbouncer import pgbouncer
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

SAY = "DIRECT_DATABASE_URL"


def test_f10_a_worker_refuses_a_session_that_is_not_its_own(database, start_worker):
    [task_id] = database.enqueue(handlers.work)
    with pgbouncer(database.url, ignores_options=True) as proxied:
        worker = start_worker("--burst", DATABASE_URL=proxied)
        assert worker.wait() == 1
    assert SAY in worker.log()
    assert database.task(task_id).attempt == 0
    assert database.rows("SELECT * FROM tasks_worker") == []


@pytest.mark.parametrize("ignores_options", [False, True], ids=["refuses options", "ignores options"])
def test_f10_nothing_that_rests_on_a_session_is_done_through_a_pool(database, settings, ignores_options):
    """Even by a way that is called direct and is not."""
    with pgbouncer(database.url, ignores_options=ignores_options) as proxied:
        settings.ROWLOCK = {"DIRECT_DATABASE_URL": proxied}
        with pytest.raises(PooledSession, match=SAY):
            pooling.own_session("rowlock:test")
        [warning] = checks.check_proxy(databases=["default"])
    assert warning.id == "rowlock.W004"


def test_f10_a_proxy_that_keeps_a_session_for_its_client_does_no_harm(database, settings):
    with pgbouncer(database.url, mode="session", ignores_options=True) as proxied:
        settings.ROWLOCK = {"DIRECT_DATABASE_URL": proxied}
        with closing(pooling.own_session("rowlock:test")) as connection:
            assert presence.take(connection, "w1")


def test_f10_with_a_direct_way_a_worker_is_woken_and_its_death_is_seen(database, ledger, start_worker):
    with pgbouncer(database.url) as proxied:
        worker = start_worker(DATABASE_URL=proxied, DIRECT_DATABASE_URL=database.url)
        [first] = database.enqueue(handlers.write_row, "through the proxy")
        database.wait_for(first, "COMPLETED")
        [lasting] = database.enqueue(handlers.work, 600.0)
        wait_until(lambda: ledger.effects(lasting))
        [state] = presence.states(connection=database.connection).values()
        assert state.is_alive
        worker.send_all(signal.SIGKILL)

        def its_presence_is_gone() -> bool:
            return not presence.states(connection=database.connection)[state.id].held

        wait_until(its_presence_is_gone, seconds=20)  # its lease is 30 s
        with psycopg.connect(proxied) as connection:
            assert connection.execute("SELECT count(*) FROM tasks_worker").fetchone() == (1,)
