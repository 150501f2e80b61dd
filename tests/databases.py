"""A separate database for each test, copied from a migrated one, so that workers of two tests never meet.

These helpers avoid Django, whose only connection belongs to the session's database.
"""

import contextlib
import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg.rows import namedtuple_row

from tasks.framework.declaration import PostgresTask
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[1]
numbers = itertools.count(1)
MIGRATED = "ROWLOCK_TEST_TEMPLATE"  # the variable with the name of a migrated database, which every server then has

ENQUEUE = """
SELECT rowlock_enqueue(%(path)s::text, %(args)s::jsonb, queue => %(queue)s::text, priority => %(priority)s::int,
    ordering_key => %(ordering_key)s::text, max_attempts => %(max_attempts)s::int,
    run_after => clock_timestamp() + make_interval(secs => %(run_after_seconds)s::float8)) AS id
FROM generate_series(1, %(count)s::int)
"""
FILL = """
INSERT INTO tasks_task (task_path, max_attempts)
SELECT %(path)s::text, %(max_attempts)s::int FROM generate_series(1, %(count)s::int)
"""


class QueueDatabase:
    """One migrated database and an autocommit connection, which reconnects after a loss."""

    kind: type[psycopg.Connection] = psycopg.Connection

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection: psycopg.Connection | None = None

    @property
    def connection(self) -> psycopg.Connection:
        if self._connection is None or self._connection.closed:
            self._connection = self.kind.connect(self.url, autocommit=True, row_factory=namedtuple_row)
        return self._connection

    def close(self) -> None:
        """Close the connection; the next query opens another."""
        if self._connection is not None:
            self._connection.close()

    def rows(self, statement: str, *params: Any) -> list[Any]:
        """The rows of one statement as named tuples; `params` for its %s."""
        cursor = self.connection.execute(statement, params)
        return cursor.fetchall() if cursor.description else []

    def value(self, statement: str, *params: Any) -> Any:
        """The first column of the only row."""
        [row] = self.rows(statement, *params)
        return row[0]

    def enqueue(
        self,
        task: PostgresTask | str,
        *args: Any,
        count: int = 1,
        queue: str = "default",
        priority: int = 0,
        ordering_key: str | None = None,
        max_attempts: int | None = None,
        run_after_seconds: float | None = None,
    ) -> list[int]:
        """Enqueue `count` tasks in one transaction, through the SQL function for other languages; returns their ids.

        `task`: a path stands for an unknown function. `max_attempts`: by default the task's own.
        """
        path, attempts = (task, None) if isinstance(task, str) else (task.module_path, task.attempts_allowed())
        params = {
            "path": path,
            "args": json.dumps(args),
            "queue": queue,
            "priority": priority,
            "ordering_key": ordering_key,
            "max_attempts": max_attempts or attempts,
            "run_after_seconds": run_after_seconds,
            "count": count,
        }
        return [row.id for row in self.connection.execute(ENQUEUE, params).fetchall()]

    def fill(self, task: PostgresTask, count: int, *, max_attempts: int | None = None) -> None:
        """Insert `count` tasks without arguments. The SQL function takes twenty times as long for thousands."""
        params = {"path": task.module_path, "max_attempts": max_attempts or task.attempts_allowed(), "count": count}
        self.connection.execute(FILL, params)

    def task(self, task_id: int) -> Any:
        [row] = self.rows("SELECT * FROM tasks_task WHERE id = %s", task_id)
        return row

    def statuses(self) -> Counter[str]:
        """The number of tasks in each status."""
        return Counter(dict(self.rows("SELECT status, count(*) FROM tasks_task GROUP BY status")))

    def outcomes(self, task_id: int) -> list[str]:
        """Outcomes of a task's unsuccessful attempts, in order."""
        statement = "SELECT outcome FROM tasks_attempt WHERE task_id = %s ORDER BY number, id"
        return [row.outcome for row in self.rows(statement, task_id)]

    def wait_for(self, task_id: int, *statuses: str, seconds: float = 30) -> Any:
        """The row of a task once it is in one of `statuses`."""

        def task_is_there() -> bool:
            return self.task(task_id).status in statuses

        wait_until(task_is_there, seconds=seconds)
        return self.task(task_id)

    def wait_until_finished(self, *, seconds: float = 60) -> Counter[str]:
        """The statuses once no task is READY or PROCESSING."""

        def everything_is_finished() -> bool:
            return not self.value("SELECT count(*) FROM tasks_task WHERE status IN ('READY', 'PROCESSING')")

        wait_until(everything_is_finished, seconds=seconds)
        return self.statuses()


def named(url: str, name: str) -> str:
    """The URL of the database `name` on the same server."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def name_of(url: str) -> str:
    return urlsplit(url).path.lstrip("/")


def create(url: str, *, template: str | None = None) -> None:
    """Create the database that `url` names, empty or as a copy of one without connections."""
    name = psycopg.sql.Identifier(name_of(url))
    copied = psycopg.sql.Identifier(name_of(template or "/template1"))
    with psycopg.connect(named(url, "postgres"), autocommit=True) as connection:
        # The default from 15 on writes every page to the write-ahead log: four times the processor time.
        strategy = psycopg.sql.SQL("STRATEGY file_copy" if connection.info.server_version >= 150_000 else "")
        connection.execute(psycopg.sql.SQL("CREATE DATABASE {} TEMPLATE {} {}").format(name, copied, strategy))


def drop(url: str) -> None:
    """Remove the database that `url` names, even with open connections."""
    with psycopg.connect(named(url, "postgres"), autocommit=True) as connection:
        name = psycopg.sql.Identifier(name_of(url))
        connection.execute(psycopg.sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))


@contextlib.contextmanager
def copy_of(template: str) -> Iterator[QueueDatabase]:
    """A copy of the database with the URL `template`, removed at the end."""
    database = QueueDatabase(named(template, f"{name_of(template)}_{next(numbers)}"))
    drop(database.url)
    create(database.url, template=template)
    try:
        yield database
    finally:
        database.close()
        drop(database.url)


def migrate(url: str) -> None:
    """Create the database that `url` names, with the project's tables: as a copy, where there is one to copy."""
    if template := os.environ.get(MIGRATED):
        create(url, template=named(url, template))
    else:
        create(url)
        environment = {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
        subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=ROOT, env=environment, check=True)
