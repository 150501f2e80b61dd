"""One idle worker is on duty, whom enqueuers wake. When it goes to work for long, another one must know."""

import os
import time
from contextlib import closing

import psycopg
import pytest

from tasks.worker import options
from tasks.worker.complete import Background, Completer
from tasks.worker.leader import HAND_OVER_SECONDS, Leadership, LeaderToken
from tasks.worker.options import Options
from tasks.worker.session import Session
from tasks.worker.shared_state import SharedState
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

ON_DUTY = """
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted
  AND classid::bigint = (hashtext('rowlock:duty')::bigint & 4294967295)
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@pytest.fixture
def background(settings, database):
    """That of a worker which is on duty; its thread is not started."""
    settings.ROWLOCK = {"DIRECT_DATABASE_URL": database.url}
    state = SharedState()
    session = Session("w1", state)
    assert session.open(lambda connection: options.register(connection, "w1", Options()))
    session.listen()
    assert session.take_duty() == "mine"
    token = LeaderToken()
    assert token.take(state)
    lifeline, other_end = os.pipe()
    leadership = Leadership(session, token, wakes=lifeline)
    yield Background(session, Completer("w1", state), leadership, lifeline=lifeline, stop=lambda: True)
    session.forget()
    os.close(lifeline)
    os.close(other_end)


def work_for_long(background):
    background.leadership.begin_work()
    background.begin_batch()
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - began > HAND_OVER_SECONDS)


def test_who_goes_to_work_for_long_wakes_the_others(database, ledger, start_worker):
    start_worker()
    wait_until(lambda: database.value(ON_DUTY) == 1)
    with closing(psycopg.connect(database.url, autocommit=True)) as idle:
        idle.execute("LISTEN rowlock_public")
        [task_id] = database.enqueue(handlers.work, 1.0)
        heard = [notify.payload for notify in idle.notifies(timeout=20, stop_after=2)]
    assert "duty" in heard
    assert database.wait_for(task_id, "COMPLETED").attempt == 1


def test_the_duty_is_left_in_the_middle_of_long_work(database, background):
    work_for_long(background)
    background.leadership.hand_over_after_long_work()
    assert not background.session.is_on_duty
    assert database.value(ON_DUTY) == 0


def test_who_has_found_nothing_more_keeps_it(database, background):
    """Otherwise it would sleep while enqueuers believe that everybody is at work."""
    work_for_long(background)
    background.end_batch()
    background.leadership.rest()
    background.leadership.hand_over_after_long_work()
    assert background.session.is_on_duty
    assert database.value(ON_DUTY) == 1
