"""The primary is killed and its replica promoted: workers and the web go on, and nothing acknowledged is lost."""

import contextlib
import http.client
import threading
from collections.abc import Iterator

import psycopg
import pytest

from tests import databases, replica
from tests.databases import QueueDatabase
from tests.replica import Cluster
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until
from tests.web import gunicorn

NAME = "rowlock_failover"
AT_ONCE = 200  # tasks before anything happens
SECONDS = 0.02


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with replica.cluster() as cluster:
        yield cluster


@pytest.fixture
def database(cluster: Cluster) -> Iterator[QueueDatabase]:
    url = cluster.url(NAME)
    databases.migrate(url)
    database = QueueDatabase(url)
    yield database
    database.close()


class Customer(threading.Thread):
    """Enqueues one task after the other on a session of its own, and keeps what was acknowledged."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.database = QueueDatabase(url)
        self.acknowledged: list[int] = []
        self.refused = 0
        self.is_over = threading.Event()

    def run(self) -> None:
        while not self.is_over.wait(0.005):
            try:
                self.acknowledged += self.database.enqueue(handlers.work, SECONDS)
            except psycopg.OperationalError:
                self.refused += 1
                self.database.close()

    def wait_for_more(self, number: int) -> None:
        """Until so many more have been acknowledged."""
        enough = len(self.acknowledged) + number
        wait_until(lambda: len(self.acknowledged) >= enough)

    def leave(self) -> None:
        self.is_over.set()
        self.join()
        self.database.close()


def ready(port: int) -> int:
    """What /readyz answers."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as tab:
        tab.request("GET", "/readyz")
        return tab.getresponse().status


@pytest.mark.chaos
def test_a_failover_loses_nothing_that_was_acknowledged(cluster, database, ledger, start_worker):
    expected = database.enqueue(handlers.work, SECONDS, count=AT_ONCE)
    customer = Customer(database.url)
    workers = [start_worker("--concurrency", 2) for _ in range(2)]
    with gunicorn(database.url) as (_, port):
        wait_until(lambda: ready(port) == 200)
        customer.start()
        customer.wait_for_more(50)
        wait_until(lambda: ledger.count() > AT_ONCE / 2)
        children = {pid for worker in workers for pid in worker.children()}
        cluster.kill_primary()
        wait_until(lambda: ready(port) == 503)  # an answer is kept for a second
        cluster.promote()
        database.close()
        customer.wait_for_more(50)
        customer.leave()
        wait_until(lambda: ready(port) == 200)
    database.wait_until_finished()
    expected += customer.acknowledged
    completed = {row.id for row in database.rows("SELECT id FROM tasks_task WHERE status = 'COMPLETED'")}
    done = {effect.task_id for effect in ledger.effects() if effect.ended}
    assert set(expected) <= completed <= done
    assert len(completed) <= len(expected) + customer.refused, "a task that nobody asked for"
    assert ledger.count() == len(completed), "an effect was repeated"
    assert children == {pid for worker in workers for pid in worker.children()}, "a worker process was lost"
    assert database.rows("SELECT * FROM tasks_worker WHERE stop_reason = 'convicted'") == []
    assert [worker.stop() for worker in workers] == [0, 0]
