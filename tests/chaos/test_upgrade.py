"""The way from one version to the next while tasks arrive: migrations first, then the new processes, then the old go.

The next version is this one with a migration more. UPGRADE_ROWS finished tasks lie in the table.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tests import databases
from tests.databases import ROOT, QueueDatabase
from tests.waiting import wait_until
from tests.web import gunicorn

ROWS = int(os.environ.get("UPGRADE_ROWS", "1000000"))
MOST_SECONDS = 0.1  # that a migration may make others wait for a table
SECONDS_TOGETHER = 3.0
FILL = """
INSERT INTO tasks_task (task_path, status, attempt, created_at, run_after, started_at, finished_at)
SELECT 'tests.tasks.worker_app.tasks.work', 'COMPLETED', 1, at, at, at, at
FROM (SELECT now() - n * interval '0.1 seconds' AS at FROM generate_series(1, %s) AS n) AS moment
"""
# The table has no functions yet where our newest migration makes them.
ENQUEUE = "INSERT INTO tasks_task (task_path) VALUES ('tests.tasks.worker_app.tasks.work')"
# Of sessions that wait for one of our tables, the longest wait so far.
WAITING = """
SELECT coalesce(max(extract(epoch FROM clock_timestamp() - waitstart)), 0)::float8 FROM pg_locks
WHERE NOT granted AND relation IS NOT NULL
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
UNFINISHED = "SELECT count(*) FROM tasks_task WHERE status <> 'COMPLETED'"
# What a later version may do to a table that is in use.
NEXT = """
from django.db import migrations

class Migration(migrations.Migration):
    atomic = False
    dependencies = [("tasks", "{newest}")]
    operations = [
        migrations.RunSQL("ALTER TABLE tasks_task ADD COLUMN next_note text"),
        migrations.RunSQL("CREATE INDEX CONCURRENTLY next_index ON tasks_task (id) WHERE next_note IS NOT NULL"),
    ]
"""


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """A copy of this version with a migration more."""
    shutil.copytree(ROOT, tmp_path / "newer", ignore=shutil.ignore_patterns(".git", ".venv", "var", ".*_cache", "docs"))
    folder = tmp_path / "newer" / "tasks" / "migrations"
    newest = max(path.stem for path in folder.glob("0*.py"))
    (folder / "9999_next.py").write_text(NEXT.format(newest=newest))
    return tmp_path / "newer"


@pytest.fixture
def database(template_url: str) -> Iterator[QueueDatabase]:
    url = databases.named(template_url, f"{databases.name_of(template_url)}_older")
    databases.create(url)
    with closing(QueueDatabase(url)) as database:
        yield database
    databases.drop(url)


def migrate(database: QueueDatabase, *target: str, checkout: Path = ROOT) -> float:
    """Seconds that it took."""
    environment = {**os.environ, "DATABASE_URL": database.url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    argv, began = [sys.executable, "manage.py", "migrate", "-v0", *target], time.monotonic()
    subprocess.run(argv, cwd=checkout, env=environment, check=True)
    return time.monotonic() - began


class Watch:
    """Tasks that arrive all the time, and the longest wait for a table."""

    def __init__(self, url: str) -> None:
        self.url, self.longest, self.enqueued = url, 0.0, 0
        self.over = threading.Event()
        self.threads = [threading.Thread(target=part) for part in (self.look, self.enqueue)]

    def look(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as session:
            while not self.over.wait(0.002):
                self.longest = max(self.longest, session.execute(WAITING).fetchone()[0])

    def enqueue(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as session:
            while not self.over.wait(0.005):
                session.execute(ENQUEUE)
                self.enqueued += 1

    def __enter__(self) -> "Watch":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()


def tell(what: str, watch: Watch, seconds: float) -> None:
    longest = round(1000 * watch.longest)
    print(json.dumps({what: ROWS, "tasks": watch.enqueued, "migrate_s": round(seconds, 2), "longest_wait_ms": longest}))


@pytest.mark.chaos
def test_our_newest_migration_makes_nobody_wait(database):
    migrate(database)
    migrate(database, "tasks", "0003")
    database.rows(FILL, ROWS)
    with Watch(database.url) as watch:
        wait_until(lambda: watch.enqueued > 20)
        seconds = migrate(database)
    tell("rows, our newest migration", watch, seconds)
    assert watch.longest < MOST_SECONDS


@pytest.mark.chaos
def test_workers_and_pages_of_two_versions_side_by_side(newer, database, ledger, start_worker):
    migrate(database)
    database.rows(FILL, ROWS)
    with contextlib.ExitStack() as stack:
        old = start_worker("--concurrency", 2)
        stack.enter_context(gunicorn(database.url))
        watch = stack.enter_context(Watch(database.url))
        wait_until(lambda: ledger.count() > 20)
        seconds = migrate(database, checkout=newer)
        new = start_worker("--concurrency", 2, checkout=newer)
        stack.enter_context(gunicorn(database.url, checkout=newer))
        began, seen = time.monotonic(), ledger.count()
        wait_until(lambda: time.monotonic() - began > SECONDS_TOGETHER and ledger.count() > seen + 20)
        assert old.stop() == 0
        seen = ledger.count()
        wait_until(lambda: ledger.count() > seen + 20)
    wait_until(lambda: not database.value(UNFINISHED), seconds=60)
    tell("rows, a migration of the next version", watch, seconds)
    assert new.process.poll() is None
    assert len({effect.pid for effect in ledger.effects()}) == 4, "workers of both versions ran tasks"
    assert database.rows("SELECT * FROM tasks_attempt") == []
    assert ledger.count() == watch.enqueued, "each task ran once"
    assert watch.longest < MOST_SECONDS
