"""`python -m tests.benchmarks.pages [FINISHED]`: each page beside a million tasks, and 200 sessions.

Beside the finished tasks there are 100,000 ready ones; fifty of the sessions wait for one row. Nothing is shared
between two requests, so each is the first of its second; the limits on statements and locks are those of the web
server, and a page that meets one is told by its status.
"""

import contextlib
import os
import sys
import time
from collections.abc import Iterator

import psycopg

from tests import databases
from tests.benchmarks.stage import HEADING, percentiles
from tests.postgres import throw_away_server
from tests.waiting import wait_until

FINISHED, SESSIONS, WAITING, ROUNDS = 1_000_000, 200, 50, 5

FILL = (
    "SET session_replication_role = replica",
    """INSERT INTO tasks_task (task_path, queue_name, status, attempt, finished_at, finished_by, kwargs)
    SELECT 'app.tasks.number' || n % 20, 'queue' || n % 5, 'COMPLETED', 1, statement_timestamp(), 'w1',
        jsonb_build_object('order', n) FROM generate_series(1, {finished}) AS n""",
    """INSERT INTO tasks_task (task_path, queue_name, status, attempt, finished_at)
    SELECT 'app.tasks.number' || n % 20, 'queue' || n % 5, 'FAILED', 5, statement_timestamp()
    FROM generate_series(1, 20000) AS n""",
    """INSERT INTO tasks_task (task_path, queue_name, priority, ordering_key)
    SELECT 'app.tasks.number' || n % 20, 'queue' || n % 5, n % 3, CASE WHEN n % 10 = 0 THEN 'key' || n % 1000 END
    FROM generate_series(1, 100000) AS n""",
    """INSERT INTO tasks_task (task_path, queue_name, status, claimed_by, attempt, started_at)
    SELECT 'app.tasks.number', 'queue' || n % 5, 'PROCESSING', 'w' || n % 9, 1, statement_timestamp()
    FROM generate_series(1, 900) AS n""",
    """INSERT INTO tasks_attempt (task_id, number, worker_id, outcome, exception_class, traceback)
    SELECT id, 5, 'w1', 'failed', 'app.errors.Number' || id % 7, repeat('line ', 100)
    FROM tasks_task WHERE status = 'FAILED'""",
    """INSERT INTO tasks_throughput (minute, queue_name, shard, completed, run_buckets, wait_buckets)
    SELECT date_trunc('minute', statement_timestamp()) - make_interval(mins => minute), 'queue' || queue, 1, 10,
        array_fill(1, ARRAY[16]), array_fill(1, ARRAY[16])
    FROM generate_series(0, 10079) AS minute, generate_series(1, 5) AS queue""",
    """INSERT INTO orders_order (customer_email, shipped_at, shipped_email_sent, email_state, email_attempts, version)
    SELECT 'customer@example.test', statement_timestamp(), n % 10 <> 0,
        CASE WHEN n % 10 <> 0 THEN 'sent' ELSE 'none' END, 0, 1 FROM generate_series(1, 200000) AS n""",
    """INSERT INTO tasks_intervention (actor, source, action, target)
    SELECT 'anna', 'page', 'requeue', 'task:' || n FROM generate_series(1, 100000) AS n""",
    "VACUUM ANALYZE",
)

PAGES = {
    "overview": "/admin/",
    "overview, a day": "/admin/?span=24h",
    "overview, a week": "/admin/?span=7d",
    "tasks": "/admin/tasks/task/",
    "tasks, failed of a queue": "/admin/tasks/task/?status=FAILED&queue=queue1",
    "tasks, text in arguments": "/admin/tasks/task/?q=4711",
    "why not running": "/admin/tasks/task/why/queue1/",
    "one task": "/admin/tasks/task/1000/",
    "queues": "/admin/tasks/queue/",
    "stuck": "/admin/ops/stale/",
    "locks": "/admin/ops/locks/",
    "workers": "/admin/ops/workers/",
    "cron and named locks": "/admin/ops/schedule/",
    "audit": "/admin/ops/audit/",
    "orders": "/admin/orders/order/",
    "metrics": "/metrics",
}


def fill(url: str, finished: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in FILL:
            connection.execute(statement.format(finished=finished))


@contextlib.contextmanager
def crowd(url: str) -> Iterator[None]:
    """So many sessions: idle ones, and those that wait for one row."""
    with contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(contextlib.closing(psycopg.connect(url))) for _ in range(SESSIONS)]
        statement = "SELECT id FROM orders_order ORDER BY id LIMIT 1 FOR UPDATE"
        sessions[0].execute(statement)
        waiting = sessions[1 : WAITING + 1]
        for session in waiting:
            session.pgconn.send_query(b"BEGIN; " + statement.encode())
        with psycopg.connect(url, autocommit=True) as watch:
            blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            wait_until(lambda: watch.execute(blocked).fetchone() == (WAITING,))
        yield


def set_up(url: str) -> None:
    """Django on this database, with the limits of a web server's sessions."""
    os.environ.update(DATABASE_URL=url, DJANGO_SETTINGS_MODULE="tests.settings")
    import django
    from django.conf import settings

    from dashboard.databases import PAGE_SESSION

    settings.DATABASES["default"]["OPTIONS"]["options"] = PAGE_SESSION
    django.setup()


def measure() -> Iterator[str]:
    """One line for each page."""
    from django.test import Client

    from tests.people import person

    client = Client(headers={"host": "localhost"})
    client.force_login(person(username="root", is_superuser=True))
    for name, address in PAGES.items():
        statuses, seconds = set(), []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            statuses.add(client.get(address).status_code)
            seconds.append(time.perf_counter() - began)
        told = "" if statuses == {200} else f"  answered {sorted(statuses)}"
        yield percentiles(name, seconds) + told


def main(finished: int = FINISHED) -> None:
    with throw_away_server(max_connections=str(SESSIONS + 50)) as server:
        url = databases.named(server.url, "pages")
        databases.migrate(url)
        fill(url, finished)
        set_up(url)
        print(f"{finished:,} finished tasks, 100,000 ready, {SESSIONS} sessions of which {WAITING} wait for one row")
        print(HEADING)
        with crowd(url):
            for line in measure():
                print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
