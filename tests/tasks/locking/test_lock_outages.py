"""The database goes away under a held lock: a live holder keeps it, and nobody takes it for dead too early."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest

from tests import databases
from tests.databases import QueueDatabase
from tests.lockers import locker
from tests.postgres import PrivateServer, throw_away_server
from tests.waiting import wait_until

END_SESSION = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE split_part(application_name, '@', 1) = 'rowlock:lock:' || %s AND datname = current_database()
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateServer]:
    with throw_away_server() as running:
        databases.migrate(databases.named(running.url, "locks"))
        yield PrivateServer(running)


@pytest.fixture
def database(server: PrivateServer) -> Iterator[QueueDatabase]:
    database = QueueDatabase(databases.named(server.url, "locks"))
    yield database
    database.close()


def acquire(database, name, ttl="30 s"):
    return database.value("SELECT rowlock_lock_acquire(%s, 'another', %s::interval)", name, ttl)


def life(database, name):
    return database.value("SELECT rowlock_lock_life(lock) FROM tasks_lock AS lock WHERE name = %s", name)


def test_a_restart_takes_no_lease_from_its_holder(server, database, name):
    """Every presence drops at once. In the new epoch absence proves nothing, and the holder comes back by itself."""
    with locker(database.url, name, ttl=30) as other:
        fence = other.hear()["fence"]
        server.restart()
        assert acquire(database, name) is None
        wait_until(lambda: life(database, name) == "alive")
        assert other.ask("state") == {"event": "state", "is_lost": False, "fence": fence}
        assert other.ask("release") == {"event": "released"}
    assert acquire(database, name) > fence


def test_a_holder_that_does_not_come_back_after_a_restart_loses_it_with_its_lease(server, database, name):
    with locker(database.url, name, ttl=3) as other:
        other.hear()
        other.kill()
        server.restart()
        assert (life(database, name), acquire(database, name)) == ("restarted", None)
        wait_until(lambda: acquire(database, name))


def test_one_crashed_backend_is_a_restart_too(server, database, name):
    with locker(database.url, name, ttl=30) as other:
        other.hear()
        server.crash_backend()
        assert acquire(database, name) is None
        wait_until(lambda: life(database, name) == "alive")
        assert not other.ask("state")["is_lost"]


def test_a_restart_ends_an_advisory_lock_and_its_holder_is_told(server, database, name):
    with locker(database.url, name, ttl=30, backend="advisory") as other:
        other.hear()
        server.restart()
        wait_until(lambda: other.ask("state")["is_lost"])
        assert other.ask("release")["event"] == "LockLost"


def test_an_outage_longer_than_the_lease_is_a_loss(server, database, name):
    with locker(database.url, name, ttl=1) as other:
        other.hear()
        server.stop()
        try:
            wait_until(lambda: other.ask("state")["is_lost"])
        finally:
            server.start()
        assert other.ask("release")["event"] == "LockLost"
        # The holder gives up a little before the database would let another have it.
        wait_until(lambda: acquire(database, name))


def test_a_wait_outlives_a_restart(server, database, name):
    with locker(database.url, name, ttl=30) as other:
        other.hear()
        with locker(database.url, name, ttl=30, wait=60) as waiting:
            wait_until(lambda: database.value("SELECT count(*) FROM tasks_lockwaiter WHERE name = %s", name))
            database.close()
            server.restart()
            wait_until(lambda: life(database, name) == "alive")
            other.ask("release")
            assert waiting.hear(30)["event"] == "held"


def test_a_wait_begins_though_the_database_is_away(server, database, name):
    server.stop()
    with ExitStack() as stack:
        try:
            waiting = stack.enter_context(locker(database.url, name, ttl=30, wait=60))
        finally:
            server.start()  # takes longer than a first try that is refused
        assert waiting.hear(30)["event"] == "held"


class TestASessionThatBreaks:
    """A lock tied to a connection that drops would run twice (fault F5): its holder gets two looks to come back."""

    def test_f05_the_holder_keeps_its_lease_though_many_want_it(self, database, name):
        with locker(database.url, name, ttl=30) as other:
            fence = other.hear()["fence"]
            stop = threading.Event()
            rivals = [Rival(database.url, name, stop) for _ in range(4)]
            for _ in range(5):
                database.rows(END_SESSION, name)
                wait_until(lambda: life(database, name) == "alive")
            stop.set()
            assert [rival.result() for rival in rivals] == [None] * 4
            assert other.ask("state") == {"event": "state", "is_lost": False, "fence": fence}

    def test_f05_the_holder_keeps_it_though_somebody_watches_its_presence(self, database, name):
        with locker(database.url, name, ttl=30) as other:
            fence = other.hear()["fence"]
            with locker(database.url, name, ttl=30, wait=60) as waiting:
                for _ in range(5):
                    wait_until(lambda: database.value("SELECT count(*) FROM tasks_lockwaiter WHERE name = %s", name))
                    database.rows(END_SESSION, name)
                    wait_until(lambda: life(database, name) == "alive")
                assert other.ask("state") == {"event": "state", "is_lost": False, "fence": fence}
                other.ask("release")
                assert waiting.hear()["event"] == "held"

    def test_f05_an_advisory_lock_is_lost_and_its_holder_told_at_once(self, database, name):
        with locker(database.url, name, ttl=300, backend="advisory") as other:
            other.hear()
            database.rows(END_SESSION, name)
            wait_until(lambda: other.ask("state")["is_lost"])
        wait_until(lambda: acquire(database, name))


class Rival:
    """A thread that tries to take the lock over and over again."""

    def __init__(self, url: str, name: str, stop: threading.Event) -> None:
        self.fence: int | None = None
        self.thread = threading.Thread(target=self.run, args=(url, name, stop))
        self.thread.start()

    def run(self, url: str, name: str, stop: threading.Event) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            while not stop.is_set() and self.fence is None:
                row = connection.execute("SELECT rowlock_lock_acquire(%s, 'rival', '30 s')", [name]).fetchone()
                self.fence = row[0]

    def result(self) -> int | None:
        self.thread.join()
        return self.fence
