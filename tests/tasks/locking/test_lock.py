"""Named locks: one meaning on every backend."""

import os
import socket
import threading
import time

import pytest

from tasks.exceptions import LockHeld
from tasks.locking import lock
from tests.commands import database_url
from tests.lockers import locker
from tests.waiting import wait_until


def test_only_one_gets_it_and_the_other_learns_who_has_it(backend, name):
    began = time.monotonic()
    with lock(name, ttl=30, backend=backend) as held, pytest.raises(LockHeld) as refusal:
        lock(name, ttl=30, backend=backend).acquire()
    holder = refusal.value.holder
    assert (holder.owner, holder.fence) == (held.owner, held.fence)
    assert (holder.hostname, holder.pid) == (socket.gethostname(), os.getpid())
    assert 0 <= holder.held_seconds <= time.monotonic() - began
    assert f"held by {holder.hostname} pid {holder.pid}" in str(refusal.value)


def test_other_names_are_free_meanwhile(backend, name):
    with lock(name, ttl=30, backend=backend), lock(f"{name} too", ttl=30, backend=backend) as other:
        assert not other.is_lost


def test_it_is_free_after_the_body_and_each_fence_is_greater(backend, name):
    fences = []
    for _ in range(3):
        with lock(name, ttl=30, backend=backend) as held:
            fences.append(held.fence)
    assert fences == sorted(set(fences))


def test_an_error_in_the_body_frees_it(backend, name):
    with pytest.raises(KeyError), lock(name, ttl=30, backend=backend):
        raise KeyError
    with lock(name, ttl=30, backend=backend):
        pass


def test_one_object_holds_at_most_once_at_a_time(backend, name):
    held = lock(name, ttl=30, backend=backend)
    with held, pytest.raises(RuntimeError, match="already"):
        held.acquire()
    with held:
        assert held.seconds_left > 20
    with pytest.raises(RuntimeError, match="not held"):
        held.release()


def test_another_process_is_kept_out(backend, name):
    with locker(database_url(), name, ttl=30, backend=backend) as other:
        assert other.hear()["event"] == "held"
        with pytest.raises(LockHeld) as refusal:
            lock(name, ttl=30, backend=backend).acquire()
        assert refusal.value.holder.pid == other.pid
        assert other.ask("release") == {"event": "released"}
    with lock(name, ttl=30, backend=backend):
        pass


class TestDecorator:
    def test_each_call_takes_the_lock(self, backend, name):
        fences = []

        @lock(name, ttl=30, backend=backend)
        def body():
            with pytest.raises(LockHeld) as refusal:
                lock(name, ttl=30, backend=backend).acquire()
            fences.append(refusal.value.holder.fence)

        body()
        body()
        assert fences[0] < fences[1]

    def test_calls_in_two_threads_take_turns(self, backend, name):
        running, most = [], []

        @lock(name, ttl=30, wait=20, backend=backend)
        def body():
            running.append(1)
            most.append(len(running))
            time.sleep(0.05)
            running.pop()

        threads = [threading.Thread(target=body) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert most == [1, 1, 1, 1]

    def test_what_runs_later_is_refused(self):
        async def asynchronous():
            yield

        def generator():
            yield

        for function in (asynchronous, generator):
            with pytest.raises(TypeError, match="Use `with lock"):
                lock("x", ttl=1)(function)


@pytest.mark.parametrize(
    ("name", "ttl"), [("", 1), ("x" * 256, 1), ("nul \0", 1), ("x", 0), ("x", -1), ("x", float("nan")), ("x", 10**9)]
)
def test_nonsense_is_refused_before_any_server_is_asked(name, ttl):
    with pytest.raises(ValueError, match="of a lock"):
        lock(name, ttl=ttl)


@pytest.mark.parametrize("wait", [-1, float("nan")])
def test_a_nonsensical_wait_too(wait):
    with pytest.raises(ValueError, match="None tries once"):
        lock("x", ttl=1, wait=wait)


def test_a_fork_of_the_holder_does_not_let_go(backend, name):
    with lock(name, ttl=30, backend=backend) as held:
        child = os.fork()
        if not child:
            held.__exit__(None, None, None)
            os._exit(0)
        os.waitpid(child, 0)
        with pytest.raises(LockHeld):
            lock(name, ttl=30, backend=backend).acquire()


def test_it_is_renewed_for_as_long_as_the_body_runs(backend, name):
    with lock(name, ttl=0.6, backend=backend) as held:
        began = time.monotonic()

        def three_leases_are_over():
            with pytest.raises(LockHeld):
                lock(name, ttl=1, backend=backend).acquire()
            return time.monotonic() - began > 3 * held.ttl

        wait_until(three_leases_are_over)
        assert not held.is_lost
