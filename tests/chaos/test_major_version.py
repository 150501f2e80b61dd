"""docs/deploy/upgrade.md, statement by statement, from PostgreSQL 15 and 16 to 18 while tasks arrive and run.

UPGRADE_ROWS finished tasks lie in the table.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
import pytest

from dashboard.embedded import USER
from tests import databases
from tests.chaos.test_upgrade import FILL, ROWS
from tests.databases import ROOT, QueueDatabase
from tests.own_admin import combinations
from tests.own_admin.servers import server_of
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

NAME = "rowlock"
DOC = " ".join((ROOT / "docs" / "deploy" / "upgrade.md").read_text().split())
PATIENCE = 600  # a copy of ten million rows takes minutes
UNFINISHED = "SELECT count(*) FROM tasks_task WHERE status <> 'COMPLETED'"
CONVICTED = "SELECT count(*) FROM tasks_worker WHERE stop_reason = 'convicted'"


def said(statement: str) -> str:
    """The statement, which must stand in the document."""
    assert statement in DOC, f"docs/deploy/upgrade.md does not say: {statement}"
    return statement


class Side:
    """One server; `administrator` is a session of another superuser than the one that owns the tables."""

    def __init__(self, version: str, stack: contextlib.ExitStack) -> None:
        installed = combinations.installation(version)
        assert installed, f"this machine has no PostgreSQL ({version})"
        self.server = stack.enter_context(server_of(installed, wal_level="logical"))
        self.url = databases.named(self.server.url, NAME)
        with psycopg.connect(self.url, autocommit=True) as session:
            session.execute("CREATE ROLE administrator SUPERUSER LOGIN")
        parts = urlsplit(self.url)
        self.as_administrator = urlunsplit(parts._replace(netloc="administrator@"))
        self.administrator = stack.enter_context(psycopg.connect(self.as_administrator, autocommit=True))

    def execute(self, statement: str) -> list[tuple]:
        cursor = self.administrator.execute(statement)
        return cursor.fetchall() if cursor.description else []

    def migrate(self) -> None:
        environment = {**os.environ, "DATABASE_URL": self.url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
        subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=ROOT, env=environment, check=True)

    def program(self, name: str) -> Path:
        return self.server.installation / "bin" / name


class Customer(threading.Thread):
    """Enqueues all the time, through whichever server takes writes; keeps what was acknowledged, and when."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url, self.over = url, threading.Event()
        self.acknowledged: list[int] = []
        self.at: list[float] = []

    def run(self) -> None:
        with closing(QueueDatabase(self.url)) as source:
            while not self.over.wait(0.01):
                try:
                    self.acknowledged += source.enqueue(handlers.work, 0.01)
                    self.at.append(time.monotonic())
                except psycopg.Error:
                    source.close()

    def gap(self) -> float:
        """The longest time in which nothing was taken."""
        return max(later - earlier for earlier, later in zip(self.at, self.at[1:], strict=False))


def copy_tables(old: Side, new: Side) -> None:
    assert "pg_dump --schema-only --no-publications OLD | psql --set ON_ERROR_STOP=1 NEW" in DOC
    dump = [new.program("pg_dump"), "--schema-only", "--no-publications", old.as_administrator]
    load = [new.program("psql"), "--quiet", "--set", "ON_ERROR_STOP=1", new.as_administrator]
    text = subprocess.run(dump, check=True, capture_output=True).stdout
    subprocess.run(load, check=True, input=text, stdout=subprocess.DEVNULL)


def replicate(old: Side, new: Side) -> float:
    """Copy everything, and go on with what changes; returns the seconds until the new server was in step."""
    began = time.monotonic()
    old.execute(said("CREATE PUBLICATION rowlock_upgrade FOR ALL TABLES;"))
    copy_tables(old, new)
    new.execute(said("ALTER ROLE rowlock IN DATABASE rowlock SET default_transaction_read_only = on;"))
    create = said("CREATE SUBSCRIPTION rowlock_upgrade CONNECTION 'OLD' PUBLICATION rowlock_upgrade;")
    new.execute(create.replace("OLD", f"host={old.server.socket_folder} dbname={NAME} user=administrator"))
    missing = said("SELECT * FROM pg_subscription_rel WHERE srsubstate <> 'r';")
    wait_until(lambda: not new.execute(missing), seconds=PATIENCE)
    new.execute(said("ANALYZE;"))
    return time.monotonic() - began


def switch(old: Side, new: Side) -> None:
    old.execute(said("ALTER ROLE rowlock IN DATABASE rowlock SET default_transaction_read_only = on;"))
    old.execute(said("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'rowlock';"))
    [(reached,)] = old.execute(said("SELECT pg_current_wal_lsn();"))
    assert "`latest_end_lsn` in `pg_stat_subscription`" in DOC
    there = (
        "SELECT coalesce(bool_and(latest_end_lsn >= %s::pg_lsn), false) FROM pg_stat_subscription WHERE relid IS NULL"
    )
    wait_until(lambda: new.administrator.execute(there, [reached]).fetchone() == (True,), seconds=60)
    [sequences] = re.findall(r"SELECT format\('SELECT setval.*?IS NOT NULL;", DOC)
    for (statement,) in old.execute(sequences):
        new.execute(statement)
    new.execute(said("DROP SUBSCRIPTION rowlock_upgrade;"))
    new.execute(said("ALTER ROLE rowlock IN DATABASE rowlock RESET default_transaction_read_only;"))


@pytest.mark.chaos
@pytest.mark.parametrize("version", ["16", "debian"])
def test_tasks_move_to_a_server_of_the_next_major_version(ledger, start_worker, version):
    with contextlib.ExitStack() as stack:
        old, new = Side(version, stack), Side("18", stack)
        old.migrate()
        with closing(QueueDatabase(old.url)) as database:
            database.rows(FILL, ROWS)
        folders = ",".join(quote(str(side.server.socket_folder), safe="") for side in (old, new))
        both = f"postgres://{USER}@/{NAME}?host={folders}&target_session_attrs=read-write"
        customer = Customer(both)
        workers = [start_worker("--concurrency", 2, DATABASE_URL=both) for _ in range(2)]
        customer.start()
        stack.callback(customer.over.set)
        copied_in = replicate(old, new)
        wait_until(lambda: ledger.count() > 100)
        before, began = len(customer.acknowledged), time.monotonic()
        [(was,)] = old.execute("SHOW server_version")
        switch(old, new)
        seconds = time.monotonic() - began
        wait_until(lambda: len(customer.acknowledged) > before + 200, seconds=60)
        customer.over.set()
        customer.join()
        with closing(QueueDatabase(new.url)) as database:
            wait_until(lambda: not database.value(UNFINISHED), seconds=60)
            assert database.value("SELECT count(*) FROM tasks_task WHERE id <= %s", ROWS) == ROWS
            kept = {row.id for row in database.rows("SELECT id FROM tasks_task WHERE id > %s", ROWS)}
            repeated, convicted = ledger.count() - len(kept), database.value(CONVICTED)
        told = {
            "from": was,
            "rows": ROWS,
            "copy_s": round(copied_in, 1),
            "tasks": len(customer.acknowledged),
            "switch_s": round(seconds, 2),
            "no_enqueue_s": round(customer.gap(), 2),
        }
        told |= {"repeated": repeated, "declared_dead": convicted}
        print(json.dumps(told))
        assert set(customer.acknowledged) <= kept
        assert [worker.stop() for worker in workers] == [0, 0]
