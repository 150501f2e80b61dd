"""Another version is deployed while work goes on: the database is migrated, and both versions work side by side.

The older version is taken out of the repository's history. In a copy without it (a shallow clone) only a program in
another language plays it, which enqueues through SQL while the tables change; the test's id says so.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests import databases, processes
from tests.databases import ROOT, QueueDatabase
from tests.postgres import throw_away_server
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

# "Show locks in any ModelAdmin, and move money there": since then ten migrations have come, one of them to tasks_task.
OLDER_VERSION = "aaab43547f8790243a45e35f079eb638ed51b165"
MAKE_OLDER_TABLES = """
import django
from django.core.management import call_command
django.setup()
for target in (["auth"], ["tasks", "0007"], ["orders", "0004"], ["dashboard", "0001"]):
    call_command("migrate", *target, verbosity=0)
"""
FINISHED = """
INSERT INTO tasks_task (task_path, status, finished_at, queue_name, priority, args, kwargs)
SELECT 'gone', CASE WHEN mod(n, 10) = 0 THEN 'FAILED' ELSE 'COMPLETED' END, clock_timestamp(), 'old', 0, '[]', '{}'
FROM generate_series(1, 20000) AS n
"""
WAITED_FOR_A_SECOND = "still waiting for"  # with log_lock_waits, after deadlock_timeout
HAVE_WORKED = """
SELECT count(DISTINCT worker.id) FROM tasks_worker AS worker JOIN tasks_task AS task ON task.finished_by = worker.id
WHERE worker.stopped_at IS NULL AND task.finished_at > (SELECT max(applied) FROM django_migrations)
"""


def is_in_history(commit: str) -> bool:
    look = ["git", "-c", "safe.directory=*", "cat-file", "-e", f"{commit}^{{commit}}"]
    return bool(shutil.which("git")) and subprocess.run(look, cwd=ROOT, stderr=subprocess.DEVNULL).returncode == 0


@pytest.fixture
def older_code(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """The checkout of the older version; None where it is not in the history."""
    if request.param is None:
        return None
    archive = ["git", "-c", "safe.directory=*", "archive", request.param]
    archived = subprocess.run(archive, cwd=ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", str(tmp_path)], input=archived.stdout, check=True)
    return tmp_path


OLDER = OLDER_VERSION if is_in_history(OLDER_VERSION) else None


@pytest.fixture
def server():
    with throw_away_server(log_lock_waits="on", deadlock_timeout="1s") as server:
        yield server


@pytest.fixture
def database(server) -> Iterator[QueueDatabase]:
    """With the older version's tables, and tasks in them."""
    url = databases.named(server.url, "upgraded")
    databases.create(url)
    python(url, "-c", MAKE_OLDER_TABLES)
    with contextlib.closing(QueueDatabase(url)) as database:
        database.rows(FINISHED)
        yield database


def python(url: str, *argv: str) -> None:
    environment = {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    done = subprocess.run([sys.executable, *argv], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("older_code", [OLDER], ids=[OLDER or "no_history_so_SQL_alone"], indirect=True)
def test_both_versions_work_while_the_tables_change_and_after(server, database, ledger, older_code, start_worker):
    early = start_worker()
    assert early.wait() == 1
    assert "run `python manage.py migrate` first" in early.log()

    with contextlib.ExitStack() as stack:
        old = stack.enter_context(worker_of(older_code, database, ledger)) if older_code else None
        with enqueuing(database.url) as enqueued:
            wait_until(lambda: bool(enqueued) and (old is None or ledger.count() > 0), seconds=60)
            # A session that has read the table and goes on: nobody may wait behind a migration that waits for it.
            with psycopg.connect(database.url) as reader:
                reader.execute("SELECT count(*) FROM tasks_task WHERE queue_name = 'default'")
                migrate = threading.Thread(target=python, args=(database.url, "manage.py", "migrate", "-v0"))
                migrate.start()
                wait_until(lambda: waits_for(database, reader.info.backend_pid), seconds=60)
                so_far = len(enqueued)
                wait_until(lambda: len(enqueued) > so_far + 50)
            migrate.join(60)
            assert not migrate.is_alive()
            new = start_worker()
            wait_until(lambda: have_worked(database) == 1 + bool(old), seconds=60)
        wait_until(lambda: database.statuses()["READY"] == database.statuses()["PROCESSING"] == 0, seconds=60)
        assert old is None or old.stop() == 0
    assert new.stop() == 0

    assert sorted(effect.task_id for effect in ledger.effects()) == sorted(enqueued)
    assert database.rows("SELECT * FROM tasks_attempt") == []
    assert WAITED_FOR_A_SECOND not in (server.data.parent / "server.log").read_text()
    assert database.value("SELECT count(*) FROM pg_index WHERE NOT indisvalid") == 0


def have_worked(database: QueueDatabase) -> int:
    """How many of the living workers have completed something since the tables changed."""
    return database.value(HAVE_WORKED)


def waits_for(database: QueueDatabase, pid: int) -> bool:
    """Whether somebody waits for the end of this session's transaction."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"
    return database.value(waiting, pid) > 0


@contextlib.contextmanager
def worker_of(code: Path, database: QueueDatabase, ledger) -> Iterator[processes.Worker]:
    """A worker of the older version."""
    workers: list[processes.Worker] = []
    with processes.ended_at_last(workers), pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "ROOT", code)
        workers.append(processes.start_worker(database.url, ledger.url))
        yield workers[-1]


@contextlib.contextmanager
def enqueuing(url: str) -> Iterator[list[int]]:
    """A program in another language that enqueues without pause; the ids of its tasks."""
    enqueued: list[int] = []
    is_over = threading.Event()

    def enqueue() -> None:
        database = QueueDatabase(url)
        with contextlib.closing(database):
            while not is_over.wait(0.005):
                enqueued.extend(database.enqueue(handlers.work))

    thread = threading.Thread(target=enqueue)
    thread.start()
    try:
        yield enqueued
    finally:
        is_over.set()
        thread.join(60)
