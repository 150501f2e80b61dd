"""Answers get lost: a claim that committed unheard, a notification that never came."""

import time

import psycopg
import pytest

from tasks.queue import presence
from tasks.worker import options
from tasks.worker.options import Options
from tasks.worker.session import Session
from tasks.worker.shared_state import SharedState
from tests.relay import relay
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

ON_DUTY = """
SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND mode = 'ExclusiveLock'
    AND classid = (hashtext('rowlock:duty')::bigint & 4294967295)
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
# They ask about once a second each.
NOBODY_ASKS = """
SELECT count(*) > 1 AND bool_and(state = 'idle' AND clock_timestamp() - state_change > interval '50 ms')
FROM pg_stat_activity WHERE application_name LIKE 'rowlock:%%' AND datname = current_database()
"""


def idle_worker_id(database):
    """The id of the one worker once it is idle and on duty, so that enqueuers notify it."""

    def somebody_is_on_duty():
        return database.rows(ON_DUTY)

    wait_until(somebody_is_on_duty)
    return database.value("SELECT id FROM tasks_worker WHERE stopped_at IS NULL")


def test_f02_rows_that_a_worker_holds_without_knowing_are_released(database, ledger, start_worker):
    """Long before a lease ends."""
    start_worker(ROWLOCK_LEASE_SECONDS=3600, TEST_CHECK_SECONDS=1)
    worker_id = idle_worker_id(database)
    with database.connection.transaction():
        [task_id] = database.enqueue(handlers.work)
        database.rows(
            "UPDATE tasks_task SET status = 'PROCESSING', claimed_by = %s, attempt = 1, started_at = clock_timestamp() "
            "WHERE id = %s",
            worker_id,
            task_id,
        )
    task = database.wait_for(task_id, "COMPLETED")
    assert task.attempt == 1
    assert database.outcomes(task_id) == []


def test_an_idle_worker_is_woken_by_a_notification(database, ledger, start_worker):
    """It would look by itself once an hour."""
    start_worker(TEST_POLL_SECONDS=3600)
    for _ in range(8):
        idle_worker_id(database)
        [task_id] = database.enqueue(handlers.work)
        database.wait_for(task_id, "COMPLETED")


def test_f09_a_lost_notification_is_made_up_by_looking(database, ledger, start_worker):
    start_worker()
    idle_worker_id(database)
    with database.connection.transaction():
        database.rows("SET LOCAL session_replication_role = replica")  # no triggers: nobody is notified
        [task_id] = database.enqueue(handlers.work)
    task = database.wait_for(task_id, "COMPLETED")
    assert task.version == 3


def test_f09_a_connection_that_is_half_open_is_found_out_and_made_anew(database, ledger, start_worker):
    """The server goes on sending notifications to a session that hears nothing: silence, no error."""
    with relay(database.url) as way:
        worker = start_worker(DIRECT_DATABASE_URL=way.url, ROWLOCK_LEASE_SECONDS=3600)
        worker_id = idle_worker_id(database)
        # A question on its way would wait for its answer until the server ends the session: another fault than this.
        wait_until(lambda: database.value(NOBODY_ASKS))
        assert way.half_open()
        [task_id] = database.enqueue(handlers.work)
        task = database.wait_for(task_id, "COMPLETED")
        assert task.finished_by == worker_id
        for _ in range(2):
            [task_id] = database.enqueue(handlers.work)
            database.wait_for(task_id, "COMPLETED")
        assert worker.stop() == 0


def test_a_notification_that_came_with_an_answer_ends_the_wait(database):
    """It was read with that answer, so the socket says nothing of it."""
    session = Session("w1", SharedState())
    with psycopg.connect(database.url, autocommit=True) as session.connection:
        session.is_ready = True
        session.connection.execute("LISTEN rowlock_public")
        database.rows("NOTIFY rowlock_public")
        wait_until(session.has_input)
        session.run(lambda connection: connection.execute("SELECT 1"))
        assert not session.has_input()
        began = time.monotonic()
        session.wait(300, session.connection.fileno())
        assert time.monotonic() - began < 300


def test_f05_a_former_session_does_not_keep_presence_from_a_new_one(settings, database):
    """The server need not know for long that the client has given up a dead path."""
    settings.ROWLOCK = {"DIRECT_DATABASE_URL": database.url}
    session = Session("w1", SharedState())
    assert session.open(lambda connection: options.register(connection, "w1", Options()))
    former, session.connection = session.connection, None
    session.forget()
    wait_until(lambda: session.ensure() and session.is_ready)
    assert presence.states(["w1"], database.connection)["w1"].is_alive
    with pytest.raises(psycopg.OperationalError):
        former.execute("SELECT 1")
    session.forget()
