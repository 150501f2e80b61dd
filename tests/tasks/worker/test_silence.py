"""A way to the database that takes every byte and passes none on: no error, no end of the connection, only silence."""

import time
from contextlib import closing

import psycopg
import pytest
from django.db import connection

from tasks.database import PromptConnection, connect_directly, fetch, transaction
from tests.commands import database_url
from tests.relay import relay
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

LEASE_SECONDS = 6


def ask_once_it_is_silent(prompt, way):
    with transaction(prompt):
        fetch(prompt, "SELECT 1")
        way.silence()
        fetch(prompt, "SELECT 1")


@pytest.mark.django_db
def test_a_question_that_is_not_answered_ends_the_connection_and_not_the_patience(settings):
    """Within a transaction too, whose end is not waited for a second time."""
    with relay(database_url()) as way:
        settings.ROWLOCK = {"DIRECT_DATABASE_URL": way.url}
        with closing(connect_directly("rowlock:test", answer_seconds=0.5)) as prompt:
            assert fetch(prompt, "SELECT 1 AS one") == [{"one": 1}]
            began = time.monotonic()
            with pytest.raises(psycopg.OperationalError, match=r"silent for 0.5 s"):
                ask_once_it_is_silent(prompt, way)
            assert prompt.closed
            assert 0.5 <= time.monotonic() - began < 10
    connection.close()


def test_a_transaction_that_stands_still_ends_with_the_lease(database, settings):
    """A process that was frozen in the middle of one would hold its rows against recovery for longer."""
    settings.ROWLOCK = {"DIRECT_DATABASE_URL": database.url, "LEASE_SECONDS": 1}
    with closing(connect_directly("rowlock:test")) as frozen:
        frozen.execute("BEGIN")
        pid = frozen.info.backend_pid
        wait_until(lambda: not database.rows("SELECT 1 FROM pg_stat_activity WHERE pid = %s", pid), seconds=20)


@pytest.mark.django_db
def test_a_notification_may_be_waited_for_without_end():
    with closing(connect_directly("rowlock:test", answer_seconds=0.1)) as prompt:
        assert isinstance(prompt, PromptConnection)
        assert list(prompt.notifies(timeout=0.3)) == []
        assert not prompt.closed


def test_a_worker_whose_way_is_silent_loses_its_tasks_with_its_lease_and_comes_back(database, ledger, start_worker):
    """Its supervisor finds it out in time, others take over, and once there is a way again it is of use again."""
    with relay(database.url) as way:
        cut_off = start_worker(DIRECT_DATABASE_URL=way.url, ROWLOCK_LEASE_SECONDS=LEASE_SECONDS)
        [task_id] = database.enqueue(handlers.work, 600.0, 0.0)
        wait_until(lambda: ledger.effects(task_id))
        other = start_worker(ROWLOCK_LEASE_SECONDS=LEASE_SECONDS)
        wait_until(lambda: database.value("SELECT count(*) FROM tasks_worker") == 2)
        way.silence()
        cut_off.wait_until_it_says(f"silent for {LEASE_SECONDS / 3:g} s", seconds=60)
        task = database.wait_for(task_id, "COMPLETED", seconds=60)
        assert task.attempt == 2
        assert database.outcomes(task_id) == ["abandoned"]
        way.speak()
        other.stop()
        # The hung task's worker learns that it was convicted, and is ended and replaced.
        [task_id] = database.enqueue(handlers.work)
        assert database.wait_for(task_id, "COMPLETED", seconds=60).attempt == 1
        assert cut_off.stop() == 0
