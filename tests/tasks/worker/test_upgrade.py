"""A worker starts only on tables that have everything it needs: its own version's, or a newer version's."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests import databases
from tests.databases import ROOT, QueueDatabase
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

LATER = "INSERT INTO django_migrations (app, name, applied) VALUES ('tasks', '9999_later', now())"


@pytest.fixture
def database(template_url: str) -> Iterator[QueueDatabase]:
    """An empty database: a test migrates it as far as it needs."""
    url = databases.named(template_url, f"{databases.name_of(template_url)}_upgraded")
    databases.create(url)
    with contextlib.closing(QueueDatabase(url)) as database:
        yield database
    databases.drop(url)


def migrate(database: QueueDatabase, *target: str) -> None:
    environment = {**os.environ, "DATABASE_URL": database.url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    argv = [sys.executable, "manage.py", "migrate", "-v0", *target]
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_worker_refuses_a_database_without_tables(database, start_worker):
    worker = start_worker()
    assert worker.wait() == 1
    assert "The tables are not there: run `python manage.py migrate` first." in worker.log()


def test_a_worker_refuses_tables_of_an_older_version_until_they_are_migrated(database, ledger, start_worker):
    migrate(database, "tasks", "0003")
    early = start_worker()
    assert early.wait() == 1
    assert "without 0004_functions" in early.log()
    assert "run `python manage.py migrate` first." in early.log()

    migrate(database)
    worker = start_worker()
    enqueued = database.enqueue(handlers.work)
    wait_until(lambda: ledger.count() == 1)
    assert worker.stop() == 0
    assert [effect.task_id for effect in ledger.effects()] == list(enqueued)


def test_a_worker_works_on_the_tables_of_a_newer_version(database, template_url, ledger, start_worker):
    databases.drop(database.url)
    databases.create(database.url, template=template_url)
    database.rows(LATER)
    enqueued = database.enqueue(handlers.work)
    worker = start_worker()
    wait_until(lambda: ledger.count() == 1)
    assert worker.stop() == 0
    assert [effect.task_id for effect in ledger.effects()] == list(enqueued)
