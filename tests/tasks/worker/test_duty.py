"""One idle worker is on duty, whom enqueuers wake. When it goes to work for long, another one must know."""

import os
import time
from contextlib import closing

import psycopg
import pytest

from tasks.queue import wakeup
from tasks.worker import leader, options
from tasks.worker.complete import Background, Completer
from tasks.worker.leader import (
    FIRST_SECONDS,
    HAND_OVER_SECONDS,
    LATER_SECONDS,
    LEAVE_SECONDS,
    SOON_SECONDS,
    Leadership,
    LeaderToken,
)
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


def test_a_leader_takes_the_duty_soon_after_the_commit_that_kept_it_away(database, background):
    """Enqueuers share the lock until they commit, mostly for a few milliseconds; each try cost 30 of them."""
    background.session.stop_listening()
    with closing(psycopg.connect(database.url)) as enqueuer:
        enqueuer.execute("SELECT rowlock_enqueue(%s, '[]')", [handlers.quick.module_path])
        assert background.leadership._lead(300.0) == 0  # it listens again, and looks first
        waits = [background.leadership._lead(300.0) for _ in range(6)]
        assert waits == [FIRST_SECONDS * 2**number for number in range(4)] + [SOON_SECONDS] * 2
        enqueuer.commit()
    assert background.leadership._lead(300.0) == 0
    assert background.session.is_on_duty


class TestTwoLeaders:
    """One of them is on duty; the other belongs to another supervisor and has heard the notification too."""

    @pytest.fixture
    def other(self, database, background):
        """The leadership of the other one, which listens."""
        state, token = SharedState(), LeaderToken()
        session = Session("w2", state)
        assert session.open(lambda connection: options.register(connection, "w2", Options()))
        session.listen()
        assert session.take_duty() == "others"
        assert token.take(state)
        yield Leadership(session, token, wakes=background.lifeline)
        session.forget()

    @pytest.fixture
    def sibling(self, background):
        """The leadership of another worker of the same supervisor."""
        state = SharedState()
        session = Session("w3", state)
        assert session.open(lambda connection: options.register(connection, "w3", Options()))
        yield Leadership(session, background.leadership.token, wakes=background.lifeline)
        session.forget()

    def looks(self, leadership, seconds=300.0):
        """Wait as a leader does once it has heard something; returns how long."""
        wait_until(leadership.session.has_input)
        began = time.monotonic()
        leadership._hear(seconds)
        waited = time.monotonic() - began
        leadership._lead(seconds)  # nothing was found
        return waited

    def test_a_new_task_is_left_to_the_one_on_duty_for_a_moment(self, database, background, other):
        """Else each task of twenty supervisors would be twenty claims."""
        database.enqueue(handlers.quick)
        assert self.looks(other) >= LEAVE_SECONDS[0]
        assert other._delay.seconds == 0

    def test_the_one_on_duty_looks_at_once(self, database, background, monkeypatch):
        monkeypatch.setattr(leader, "LEAVE_SECONDS", (20.0, 20.0))
        database.enqueue(handlers.quick)
        assert self.looks(background.leadership, 20.0) < 20

    def test_the_one_on_duty_tells_the_others_of_a_task_that_is_not_for_it(
        self, database, background, other, monkeypatch
    ):
        monkeypatch.setattr(leader, "LEAVE_SECONDS", (20.0, 20.0))
        database.enqueue(handlers.quick)
        self.looks(background.leadership)
        assert self.looks(other, 20.0) < 20

    def test_who_looks_in_vain_for_what_is_told_to_all_looks_later_the_next_time(self, database, background, other):
        for _ in range(3):
            wakeup.announce(database.connection)
            assert self.looks(other) < 300
        assert other._delay.seconds == pytest.approx(3 * LATER_SECONDS)
        wakeup.announce(database.connection)
        wait_until(other.session.has_input)
        other._hear(300)
        other.found_work(got_several=False)
        assert other._delay.seconds == 0

    def heard(self, database, other):
        """Return the payloads that the other one has received by now; they come in the order of their commits."""
        wakeup.announce(database.connection)
        payloads = set()

        def all_heard():
            payloads.update(other.session.drain())
            return "ready" in payloads

        wait_until(all_heard)
        return payloads

    def test_the_duty_goes_to_the_next_holder_of_the_token_and_nobody_else_is_told(
        self, database, background, other, sibling
    ):
        """Else each task of more than 10 ms would cost a claim of each supervisor."""
        work_for_long(background)
        background.leadership.hand_over_after_long_work()
        assert sibling.token.take(sibling.state)
        background.leadership.hand_over_after_long_work()
        sibling._lead(300)
        assert sibling.session.is_on_duty
        assert not sibling.state.has_left_duty
        assert self.heard(database, other) == {"ready"}

    def test_the_duty_is_offered_to_all_if_nobody_takes_the_token(self, database, background, other):
        work_for_long(background)
        background.leadership.hand_over_after_long_work()
        assert background.leadership.is_handing_over
        background.leadership.hand_over_after_long_work()
        assert not background.leadership.is_handing_over
        self.looks(other)
        assert other.session.is_on_duty
        assert database.value(ON_DUTY) == 1

    def test_who_takes_the_token_and_goes_to_work_at_once_offers_the_duty(self, database, background, other, sibling):
        work_for_long(background)
        background.leadership.hand_over_after_long_work()
        assert sibling.token.take(sibling.state)
        sibling.begin_work()
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > HAND_OVER_SECONDS)
        for _ in range(2):
            sibling.hand_over_after_long_work()
        assert "duty" in self.heard(database, other)

    def test_a_leader_that_gets_all_it_asks_for_offers_the_duty_at_once(self, database, background, other):
        """There may be work for all."""
        background.leadership.found_work(got_several=True)
        assert "duty" in self.heard(database, other)
