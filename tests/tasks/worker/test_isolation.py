"""Workers and commands work at READ COMMITTED, whatever level the server, the database or the role has by default."""

import os
import signal
import subprocess
import sys
from contextlib import closing

import pytest

from tasks.queue.strategies import STRATEGIES
from tasks.support.database import connect_directly, fetch
from tests.databases import ROOT, name_of
from tests.pgbouncer import pgbouncer
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

# The database itself refuses what is written at another level.
REFUSE_OTHER_LEVELS = """
CREATE FUNCTION refuse_other_levels() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE 'this was written at level %', current_setting('transaction_isolation');
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER level BEFORE UPDATE ON tasks_task FOR EACH ROW EXECUTE FUNCTION refuse_other_levels();
CREATE TRIGGER level BEFORE INSERT OR UPDATE ON tasks_worker FOR EACH ROW EXECUTE FUNCTION refuse_other_levels();
CREATE TRIGGER level BEFORE INSERT ON tasks_attempt FOR EACH ROW EXECUTE FUNCTION refuse_other_levels();
"""


@pytest.fixture
def database(database):
    """Its sessions begin at SERIALIZABLE."""
    database.rows(f"ALTER DATABASE \"{name_of(database.url)}\" SET default_transaction_isolation = 'serializable'")
    database.close()
    assert database.value("SHOW transaction_isolation") == "serializable"
    return database


@pytest.fixture
def strict(database):
    """It takes writes of READ COMMITTED alone."""
    database.connection.execute(REFUSE_OTHER_LEVELS)
    return database


def test_a_session_of_a_workers_own(database, settings):
    settings.ROWLOCK = {"DIRECT_DATABASE_URL": database.url}
    with closing(connect_directly("rowlock:test")) as connection:
        assert fetch(connection, "SHOW transaction_isolation") == [{"transaction_isolation": "read committed"}]


def test_a_handlers_connection(database, start_worker):
    [task_id] = database.enqueue(handlers.isolation)
    start_worker("--burst").wait()
    assert database.task(task_id).return_value == ["read committed", "read committed"]


def test_a_handlers_transactions_through_a_pooling_proxy(database, start_worker):
    """A statement by itself has the level of the proxy's session: no option passes it."""
    [task_id] = database.enqueue(handlers.isolation)
    with pgbouncer(database.url) as proxied:
        start_worker("--burst", DATABASE_URL=proxied, DIRECT_DATABASE_URL=database.url).wait()
    assert database.task(task_id).return_value == ["serializable", "read committed"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_all_that_a_worker_writes(strict, start_worker, strategy):
    strict.enqueue(handlers.work, count=20)
    worker = start_worker("--strategy", strategy)
    assert strict.wait_until_finished() == {"COMPLETED": 20}
    assert worker.stop() == 0
    assert "this was written at level" not in worker.log()


@pytest.mark.parametrize("arguments", [[], ["--burst"]], ids=["worker", "burst"])
def test_taking_back_what_a_dead_worker_held(strict, ledger, start_worker, arguments):
    [task_id] = strict.enqueue(handlers.work, 600.0, 0.0)
    dying = start_worker()
    wait_until(lambda: ledger.effects(task_id))
    dying.send_all(signal.SIGKILL)
    dying.wait()
    start_worker(*arguments)
    assert strict.wait_for(task_id, "COMPLETED").attempt == 2


def test_a_command(strict):
    [task_id] = strict.enqueue(handlers.work)
    argv = [sys.executable, "manage.py", "cancel_tasks", str(task_id)]
    environment = {**os.environ, "DATABASE_URL": strict.url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    subprocess.run(argv, cwd=ROOT, env=environment, check=True)
    assert strict.task(task_id).status == "CANCELLED"
