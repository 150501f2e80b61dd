"""Waiting for a named lock: woken and not polling, shown while it lasts, and refused where it would never end."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from django.db import connection

from tasks.exceptions import LockCycle, LockHeld
from tasks.locking import lock
from tasks.locking.named import backends
from tests.commands import database_url
from tests.lockers import locker
from tests.waiting import wait_until


@pytest.fixture
def threads():
    with ThreadPoolExecutor() as pool:
        yield pool


def waiters(name, backend):
    return [waiter for waiter in backends.waiters(backend) if waiter.name == name]


def wait_until_waited_for(name, backend):
    def is_waited_for():
        return waiters(name, backend)

    return wait_until(is_waited_for)


def hold_for(seconds, name, **options):
    """Take the lock, keep it, let go; when it was taken and when let go."""
    with lock(name, ttl=30, **options):
        taken_at = time.monotonic()
        time.sleep(seconds)
        return taken_at, time.monotonic()


class TestTheDemonstration:
    """A short job and a long one, started together under one lock, take as long as both, in both orders."""

    @pytest.mark.parametrize("seconds", [(0.1, 0.6), (0.6, 0.1)])
    def test_both_run_one_after_the_other_and_nothing_is_lost_between(
        self, backend, name, threads, seconds, monkeypatch
    ):
        # Whoever only looked again would lose as much between the two.
        monkeypatch.setattr("tasks.locking.named.postgres.RECHECK_SECONDS", 60.0)
        monkeypatch.setattr("tasks.locking.named.redis.RECHECK_SECONDS", 60.0)
        first = threads.submit(hold_for, seconds[0], name, backend=backend)
        wait_until(lambda: backends.holder(name, backend))
        second = threads.submit(hold_for, seconds[1], name, backend=backend, wait=50)
        (first_taken, first_let_go), (second_taken, second_let_go) = first.result(), second.result()
        assert first_let_go <= second_taken
        assert second_taken - first_let_go < 20
        assert second_let_go - first_taken >= 0.7


def test_who_waits_is_woken_by_the_release(backend, name, threads, monkeypatch):
    """With the look behind the wake-up put off, only the wake-up can be what ends the wait."""
    monkeypatch.setattr("tasks.locking.named.postgres.RECHECK_SECONDS", 60.0)
    monkeypatch.setattr("tasks.locking.named.redis.RECHECK_SECONDS", 60.0)
    with lock(name, ttl=60, backend=backend):
        waiting = threads.submit(hold_for, 0, name, backend=backend, wait=50)
        wait_until_waited_for(name, backend)
    waiting.result(timeout=45)


def test_the_wait_has_an_end(backend, name):
    with locker(database_url(), name, ttl=30, backend=backend) as other:
        fence = other.hear()["fence"]
        began = time.monotonic()
        with pytest.raises(LockHeld) as refusal:
            lock(name, ttl=30, wait=0.3, backend=backend).acquire()
        assert time.monotonic() - began >= 0.3
        assert refusal.value.holder.fence == fence
        assert waiters(name, backend) == []


def test_who_waits_is_shown_while_it_waits(backend, name):
    held = lock(name, ttl=30, backend=backend).acquire()
    began = time.monotonic()
    with locker(database_url(), name, ttl=30, wait=20, backend=backend) as other:
        wait_until_waited_for(name, backend)
        looked_at = time.monotonic()
        [first] = waiters(name, backend)
        assert (first.name, first.pid, first.holds) == (name, other.pid, frozenset())
        assert 0 <= first.waiting_seconds <= time.monotonic() - began

        def is_told_for_a_second_more() -> bool:
            """Never for longer than it was: a clock read in whole seconds turns in between."""
            [waiter] = waiters(name, backend)
            more = waiter.waiting_seconds - first.waiting_seconds
            assert more <= time.monotonic() - looked_at
            return more > 1

        wait_until(is_told_for_a_second_more)
        held.release()
        assert other.hear()["event"] == "held"
        assert waiters(name, backend) == []


def test_a_waiter_that_died_is_not_shown(postgres_backend, name):
    with lock(name, ttl=30, backend=postgres_backend):
        with locker(database_url(), name, ttl=30, wait=20, backend=postgres_backend) as other:
            wait_until_waited_for(name, postgres_backend)
            other.kill()
        wait_until(lambda: not waiters(name, postgres_backend))


def test_twenty_waiters_all_get_their_turn(backend, name, threads):
    with ThreadPoolExecutor(20) as pool:
        turns = list(pool.map(lambda _: hold_for(0.01, name, backend=backend, wait=60), range(20)))
    turns.sort()
    assert all(let_go <= taken for (_, let_go), (taken, _) in pairwise(turns))


class TestCycles:
    def test_two_that_wait_for_each_other(self, backend, name, threads):
        a, b = f"{name} a", f"{name} b"
        with lock(a, ttl=30, backend=backend):
            other_has_b = threading.Event()
            other = threads.submit(self.hold_and_wait, b, a, backend, other_has_b)
            other_has_b.wait(20)
            wait_until_waited_for(a, backend)
            with pytest.raises(LockCycle) as refusal:
                lock(b, ttl=30, wait=20, backend=backend).acquire()
            assert f"{b} → {a} → {b}" in str(refusal.value)
        assert other.result() == "had both"

    def test_three_in_a_circle(self, backend, name, threads):
        a, b, c = (f"{name} {letter}" for letter in "abc")
        ready = [threading.Event(), threading.Event()]
        with lock(a, ttl=30, backend=backend):
            others = [threads.submit(self.hold_and_wait, b, a, backend, ready[0])]
            wait_until_waited_for(a, backend)
            others.append(threads.submit(self.hold_and_wait, c, b, backend, ready[1]))
            wait_until_waited_for(b, backend)
            with pytest.raises(LockCycle, match=f"{c} → {b} → {a} → {c}"):
                lock(c, ttl=30, wait=20, backend=backend).acquire()
        assert [other.result() for other in others] == ["had both"] * 2

    def test_a_lock_that_this_thread_holds_itself(self, backend, name):
        with lock(name, ttl=30, backend=backend), pytest.raises(LockCycle, match="by this very thread"):
            lock(name, ttl=30, wait=20, backend=backend).acquire()

    def test_a_lock_that_the_starting_command_holds(self, backend, name, monkeypatch):
        with lock(name, ttl=30, backend=backend) as held:
            monkeypatch.setenv("ROWLOCK_HELD_FENCES", str(held.fence))
            with locker(database_url(), name, ttl=30, wait=20, backend=backend) as child:
                assert child.hear()["event"] == "LockCycle"

    def test_waiting_in_a_line_is_no_cycle(self, backend, name, threads):
        a, b = f"{name} a", f"{name} b"
        ready = threading.Event()
        with lock(a, ttl=30, backend=backend):
            other = threads.submit(self.hold_and_wait, b, a, backend, ready)
            wait_until_waited_for(a, backend)
            third = threads.submit(hold_for, 0, b, backend=backend, wait=20)
            wait_until_waited_for(b, backend)
        assert other.result() == "had both"
        third.result()

    @staticmethod
    def hold_and_wait(held, wanted, backend, ready):
        with lock(held, ttl=30, backend=backend):
            ready.set()
            with lock(wanted, ttl=30, wait=20, backend=backend):
                return "had both"


def test_waiting_leaves_no_row_behind(postgres_backend, name, threads):
    with lock(name, ttl=30, backend=postgres_backend):
        waiting = threads.submit(hold_for, 0, name, backend=postgres_backend, wait=20)
        wait_until_waited_for(name, postgres_backend)
    waiting.result()
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM tasks_lockwaiter")
        assert cursor.fetchone() == (0,)
