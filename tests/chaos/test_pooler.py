"""PgBouncer in transaction mode before the handlers, killed under load and started again."""

import tempfile
from contextlib import closing

import pytest

from tests.databases import QueueDatabase
from tests.pgbouncer import pgbouncer
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

RESTARTS = 10
TASKS = 300  # after each


@pytest.mark.chaos
def test_a_proxy_that_is_killed_costs_attempts_and_no_task(database, ledger, start_worker):
    """Workers have their own way to the database, so none is lost; the handlers that the proxy took along run again."""
    variables = {"DIRECT_DATABASE_URL": database.url}
    with tempfile.TemporaryDirectory(prefix="pgbouncer-", dir="/tmp") as folder:
        for number in range(RESTARTS + 1):
            with pgbouncer(database.url, folder=folder) as proxied:
                with closing(QueueDatabase(proxied)) as customer:
                    customer.enqueue(handlers.write_in_transaction, 0.01, count=TASKS)
                if not number:
                    workers = [start_worker("--concurrency", 2, DATABASE_URL=proxied, **variables) for _ in range(2)]
                wait_until(lambda number=number: ledger.count() > number * TASKS, seconds=60)
                children = {pid for worker in workers for pid in worker.children()}
        with pgbouncer(database.url, folder=folder):
            assert database.wait_until_finished(seconds=120) == {"COMPLETED": (RESTARTS + 1) * TASKS}
    failed = database.rows("SELECT outcome, exception_class, count(*) FROM tasks_attempt GROUP BY 1, 2")
    print(failed)
    assert [row[:2] for row in failed] == [("failed", "django.db.utils.OperationalError")]
    assert children == {pid for worker in workers for pid in worker.children()}, "a worker process was lost"
    assert [worker.stop() for worker in workers] == [0, 0]
