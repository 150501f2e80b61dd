"""The database that the pages are measured on: ten million finished tasks, what stands beside them, and a crowd.

A home folder keeps it, as the filling takes minutes; one that was filled with other sizes is filled anew.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg

from dashboard.embedded.server import EmbeddedServer, running
from tasks.queue import throughput
from tests import databases
from tests.postgres import THROW_AWAY, throw_away_server
from tests.waiting import wait_until

CHUNK = 500_000  # rows filled in one statement
SPARE_CONNECTIONS = 60
FILLING = {"max_wal_size": "8GB", "checkpoint_timeout": "30min"}


@dataclass(frozen=True)
class Sizes:
    """How much of everything there is. `waiting` of the `sessions` wait for one row."""

    finished: int = 10_000_000
    ready: int = 100_000
    failed: int = 10_000
    interventions: int = 1_000_000
    sessions: int = 200
    waiting: int = 50

    @property
    def of_rows(self) -> str:
        """What a filled database is known by: the sizes that its rows depend on."""
        kept = {name: number for name, number in asdict(self).items() if name not in ("sessions", "waiting")}
        return "pages " + " ".join(f"{name}={number}" for name, number in kept.items())


# Two weeks of tasks, the failed ones among the others. Triggers and foreign keys are off in the session that fills.
FINISHED = """
INSERT INTO tasks_task (task_path, queue_name, status, attempt, created_at, run_after, started_at, finished_at,
    finished_by, kwargs)
SELECT 'app.tasks.number' || n %% 20, 'queue' || n %% 5, CASE WHEN is_failed THEN 'FAILED' ELSE 'COMPLETED' END,
    CASE WHEN is_failed THEN 5 ELSE 1 END, at, at, at, at + interval '1 second',
    CASE WHEN NOT is_failed THEN 'live' || n %% 20 END, jsonb_build_object('order', n)
FROM (SELECT n, n %% %(stride)s::bigint = n / %(stride)s::bigint %% 20 AS is_failed,
          statement_timestamp() - (%(total)s::bigint - n) * (interval '14 days' / %(total)s::bigint) AS at
      FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n) AS numbered
"""
ATTEMPTS = """
INSERT INTO tasks_attempt (task_id, number, worker_id, outcome, exception_class, traceback, finished_at)
SELECT id, 5, 'live1', 'failed', 'app.errors.Number' || id %% 7, repeat('line ', 100), finished_at
FROM tasks_task WHERE status = 'FAILED' AND id <= %s ORDER BY id
"""
READY = """
INSERT INTO tasks_task (task_path, queue_name, priority, ordering_key)
SELECT 'app.tasks.number' || n %% 20, 'queue' || n %% 5, n %% 3, CASE WHEN n %% 10 = 0 THEN 'key' || n %% 1000 END
FROM generate_series(1, %s) AS n
"""
INTERVENTIONS = """
INSERT INTO tasks_intervention (at, actor, source, action, target)
SELECT statement_timestamp() - (%(total)s::bigint - n) * interval '1 second', 'person' || n %% 30, 'page',
    (ARRAY['requeue', 'cancel', 'recover', 'pause'])[1 + n %% 4], 'task:' || n
FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
"""
# Nine workers that are gone with a hundred tasks each, and twenty that live, each with two hundred.
OTHERS = (
    """INSERT INTO tasks_task (task_path, queue_name, status, claimed_by, attempt, started_at)
    SELECT 'app.tasks.number1', 'queue' || n % 5, 'PROCESSING', 'gone' || n % 9, 1, statement_timestamp()
    FROM generate_series(1, 900) AS n""",
    """INSERT INTO tasks_task (task_path, queue_name, status, claimed_by, attempt, started_at)
    SELECT 'app.tasks.number1', 'queue' || n % 5, 'PROCESSING', 'live' || n % 20, 1, statement_timestamp()
    FROM generate_series(1, 4000) AS n""",
    """INSERT INTO tasks_worker (id, hostname, pid, lease_seconds, task_paths, current_task_id, current_since)
    SELECT 'live' || n, 'host' || n % 3, n, 1e9, ARRAY(SELECT 'app.tasks.number' || m FROM generate_series(0, 19) AS m),
        (SELECT min(id) FROM tasks_task WHERE status = 'PROCESSING' AND claimed_by = 'live' || n), statement_timestamp()
    FROM generate_series(0, 19) AS n""",
    """INSERT INTO orders_order (customer_email, shipped_at, shipped_email_sent, email_state, email_attempts, version)
    SELECT 'customer@example.test', statement_timestamp(), n % 10 <> 0,
        CASE WHEN n % 10 <> 0 THEN 'sent' ELSE 'none' END, 0, 1 FROM generate_series(1, 200000) AS n""",
    """INSERT INTO tasks_commandrun (name, argv, started_at, finished_at, exit_status, outcome)
    SELECT 'command' || n % 10, '{}', at, at + interval '3 seconds', 0, 'succeeded'
    FROM generate_series(1, 50000) AS n, LATERAL (SELECT now() - n * interval '1 minute' AS at) AS run""",
)
# What the charts show ends now, whenever the rows were filled.
THROUGHPUT = (
    "TRUNCATE tasks_throughput, tasks_throughputslot, tasks_throughputtotal",
    """INSERT INTO tasks_throughput (minute, queue_name, shard, completed, run_buckets, wait_buckets)
    SELECT date_trunc('minute', statement_timestamp()) - make_interval(mins => minute), 'queue' || queue, shard, 50,
        array_fill(1, ARRAY[16]), array_fill(1, ARRAY[16])
    FROM generate_series(0, 10079) AS minute, generate_series(0, 4) AS queue, generate_series(1, 4) AS shard""",
    "VACUUM ANALYZE tasks_throughput",
)


@contextlib.contextmanager
def filled(sizes: Sizes, home: Path | None) -> Iterator[str]:
    """The address of a database with these rows; its server goes at the end, its data too without a `home`."""
    settings = {**FILLING, "max_connections": str(sizes.sessions + SPARE_CONNECTIONS)}
    with server_of(home, settings) as server:
        url = databases.named(server.url, "pages")
        if known_as(url) != sizes.of_rows:
            databases.drop(url)
            databases.create(url)
            migrate(url)
            fill(url, sizes)
        migrate(url)
        with psycopg.connect(url, autocommit=True) as connection:
            for statement in THROUGHPUT:
                connection.execute(statement)
            while throughput.fold(connection):  # as the workers do once a minute
                pass
        yield url


@contextlib.contextmanager
def server_of(home: Path | None, settings: dict[str, str]) -> Iterator[EmbeddedServer]:
    if home is None:
        with throw_away_server(**settings) as server:
            yield server
        return
    home.mkdir(parents=True, exist_ok=True)
    with running(home, runs="a benchmark", settings={**THROW_AWAY, **settings}) as server:
        yield server


def known_as(url: str) -> str | None:
    """What a filled database is known by; None for one that is not there or was not filled to the end."""
    statement = "SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = %s"
    with psycopg.connect(databases.named(url, "postgres"), autocommit=True) as connection:
        found = connection.execute(statement, [databases.name_of(url)]).fetchone()
    return found[0] if found else None


def migrate(url: str) -> None:
    environment = {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=databases.ROOT, env=environment, check=True)


def fill(url: str, sizes: Sizes) -> None:
    """All the rows, with a line of progress on stderr; a comment on the database says at last that they are there."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        in_chunks(connection, FINISHED, sizes.finished, stride=max(1, sizes.finished // sizes.failed))
        connection.execute(ATTEMPTS, [sizes.finished])
        connection.execute(READY, [sizes.ready])
        in_chunks(connection, INTERVENTIONS, sizes.interventions)
        for statement in OTHERS:
            connection.execute(statement)
        connection.execute("VACUUM (ANALYZE, FREEZE)")
        comment = psycopg.sql.SQL("COMMENT ON DATABASE {} IS {}")
        connection.execute(comment.format(psycopg.sql.Identifier(databases.name_of(url)), sizes.of_rows))


def in_chunks(connection: psycopg.Connection, statement: str, total: int, **params: int) -> None:
    """Run the statement for `first` to `last` of each chunk up to `total`."""
    began = time.monotonic()
    for first in range(1, total + 1, CHUNK):
        last = min(total, first + CHUNK - 1)
        connection.execute(statement, {"first": first, "last": last, "total": total, **params})
        print(
            f"\rfilled {last:,} of {total:,} in {time.monotonic() - began:.0f} s", end="", file=sys.stderr, flush=True
        )
    print(file=sys.stderr)


@contextlib.contextmanager
def crowd(url: str, sizes: Sizes) -> Iterator[None]:
    """So many sessions: of workers, idle ones, and those that wait for one row."""
    with contextlib.ExitStack() as stack:
        names = [f"rowlock:worker:live{number}" if number < 20 else "psql" for number in range(sizes.sessions)][::-1]
        sessions = [
            stack.enter_context(contextlib.closing(psycopg.connect(url, application_name=name))) for name in names
        ]
        statement = "SELECT id FROM orders_order ORDER BY id LIMIT 1 FOR UPDATE"
        sessions[0].execute(statement)
        for session in sessions[1 : sizes.waiting + 1]:
            session.pgconn.send_query(b"BEGIN; " + statement.encode())
        with psycopg.connect(url, autocommit=True) as watch:
            blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            wait_until(lambda: watch.execute(blocked).fetchone() == (sizes.waiting,))
        yield
