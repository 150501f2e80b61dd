"""A lock that is lost: the holder learns it, its late writes are refused, and it harms nobody's lock."""

import signal
import threading
import time

import pytest
from django.db import connection

from tasks.exceptions import LockHeld, LockLost
from tasks.locking import lock
from tasks.locking.named import backends
from tests.commands import database_url
from tests.lockers import locker
from tests.waiting import wait_until


@pytest.fixture
def steal(backend, redis_server):
    """Take a lock away from its holder, as an administrator's mistake or an accident would."""

    def from_postgres(name):
        with connection.cursor() as cursor:
            cursor.execute("UPDATE tasks_lock SET owner = 'thief', fence = fence + 1 WHERE name = %s", [name])

    def from_redis(name):
        with redis_server.connect() as client:
            client.set(f"rowlock:{{{name}}}:lock", "thief", px=60_000)

    return from_redis if backend == "redis" else from_postgres


@pytest.fixture
def report():
    """A resource that takes no write with an older fence than the last one."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE report (fence bigint NOT NULL, text text NOT NULL)")
        cursor.execute("INSERT INTO report VALUES (0, '')")
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE report")


def write(text, fence):
    """One fenced write; whether it was accepted."""
    with connection.cursor() as cursor:
        cursor.execute("UPDATE report SET fence = %s, text = %s WHERE fence <= %s", [fence, text, fence])
        return bool(cursor.rowcount)


def test_the_body_learns_it_while_it_runs_and_the_end_raises(backend, name, steal):
    told = threading.Event()
    held = lock(name, ttl=0.6, backend=backend, on_lost=told.set).acquire()
    steal(name)
    assert told.wait(20)
    assert (held.is_lost, held.seconds_left) == (True, 0)
    for learn in (held.check, held.release):
        with pytest.raises(LockLost, match="somebody else may have taken it"):
            learn()


def test_it_is_told_once_even_when_the_callback_fails(backend, name, steal):
    calls = []

    def fails():
        calls.append(1)
        raise KeyError

    held = lock(name, ttl=0.3, backend=backend, on_lost=fails).acquire()
    steal(name)
    wait_until(lambda: calls)
    with pytest.raises(LockLost):
        held.release()
    assert calls == [1]


def test_a_loss_that_only_the_release_finds(backend, name, steal):
    with pytest.raises(LockLost), lock(name, ttl=30, backend=backend):
        steal(name)


def test_the_error_of_the_body_is_not_hidden_by_the_loss(backend, name, steal):
    @lock(name, ttl=30, backend=backend)
    def body():
        steal(name)
        raise KeyError

    with pytest.raises(KeyError) as error:
        body()
    assert "was lost while it was held" in error.value.__notes__[0]


def test_the_release_of_a_lost_lock_leaves_the_lock_of_the_next_one(backend, name, steal):
    with pytest.raises(LockLost), lock(name, ttl=30, backend=backend):
        steal(name)
    assert backends.holder(name, backend).owner == "thief"


def test_a_frozen_holder_is_fenced_when_it_returns(backend, name, report):
    """SIGSTOP past the lease: another one takes over, the frozen one learns it, and its write is refused."""
    with locker(database_url(), name, ttl=1, backend=backend) as frozen:
        old_fence = frozen.hear()["fence"]
        assert write("by the first", old_fence)
        frozen.send(signal.SIGSTOP)
        with lock(name, ttl=30, wait=20, backend=backend) as held:
            assert held.fence > old_fence
            assert write("by the second", held.fence)
            frozen.send(signal.SIGCONT)
            assert frozen.ask("state")["is_lost"]
            assert not write("by the first, late", old_fence)
            assert frozen.ask("release")["event"] == "LockLost"
            assert not held.is_lost
    with connection.cursor() as cursor:
        cursor.execute("SELECT text FROM report")
        assert cursor.fetchone() == ("by the second",)


class TestAKilledHolder:
    """Its session ends with it, so PostgreSQL sees it die; Redis sees only its lease end."""

    def test_is_succeeded_long_before_its_lease_is_over(self, postgres_backend, name):
        with locker(database_url(), name, ttl=300, backend=postgres_backend) as other:
            fence = other.hear()["fence"]
            other.kill()
            with lock(name, ttl=30, wait=20, backend=postgres_backend) as held:
                assert held.fence > fence

    def test_who_waits_for_it_is_woken_by_its_death(self, postgres_backend, name, monkeypatch):
        monkeypatch.setattr("tasks.locking.named.postgres.RECHECK_SECONDS", 60.0)
        with locker(database_url(), name, ttl=300, backend=postgres_backend) as other:
            other.hear()
            with locker(database_url(), name, ttl=30, wait=50, backend=postgres_backend) as waiting:
                wait_until(lambda: backends.waiters(postgres_backend))
                other.kill()
                assert waiting.hear(10)["event"] == "held"

    def test_one_try_is_enough(self, postgres_backend, name):
        """Cron does not wait: a single try looks twice by itself."""
        with locker(database_url(), name, ttl=300, backend=postgres_backend) as other:
            other.hear()
            other.kill()
        wait_until(lambda: backends.holder(name, postgres_backend).life == "missing")
        with lock(name, ttl=30, backend=postgres_backend):
            pass

    def test_in_redis_its_lock_ends_with_its_lease(self, redis_url, transactional_db, name):
        with locker(database_url(), name, ttl=1.5, backend="redis") as other:
            fence = other.hear()["fence"]
            other.kill()
            with pytest.raises(LockHeld, match="Unless it renews its lease"):
                lock(name, ttl=30, backend="redis").acquire()
            with lock(name, ttl=30, wait=20, backend="redis") as held:
                assert held.fence > fence


class TestARestartOfRedis:
    """It keeps nothing on disk here: the lock is gone, and must not be held by two without anybody knowing."""

    def test_the_holder_learns_that_its_lock_is_gone(self, private_redis, name):
        told = threading.Event()
        held = lock(name, ttl=2, backend="redis", on_lost=told.set).acquire()
        private_redis.stop()
        private_redis.start()
        assert told.wait(20)
        with pytest.raises(LockLost):
            held.release()

    def test_fences_grow_all_the_same(self, private_redis, name):
        with lock(name, ttl=30, backend="redis") as held:
            before = held.fence
        private_redis.stop()
        private_redis.start()
        with lock(name, ttl=30, backend="redis") as held:
            assert held.fence > before

    def test_broken_connections_are_survived(self, private_redis, name):
        with lock(name, ttl=1.5, backend="redis") as held, private_redis.connect() as client:
            began = time.monotonic()

            def two_leases_are_over():
                client.client_kill_filter(skipme=True)
                return time.monotonic() - began > 3

            wait_until(two_leases_are_over)
            assert not held.is_lost
