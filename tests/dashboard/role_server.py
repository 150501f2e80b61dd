"""A server whose database is set up by docs/roles.sql, and this process's own connection as one of its roles."""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import psycopg
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.test import Client
from django.utils import timezone

from orders import accounts
from orders.models import Account, Order
from tasks.models import Attempt, CommandRun, RefusedWrite, Worker
from tests import databases
from tests.commands import run
from tests.databases import ROOT, QueueDatabase
from tests.people import PASSWORD, person
from tests.postgres import throw_away_server
from tests.tasks import rows

ROLES_SQL = (ROOT / "docs" / "roles.sql").read_text()
MIGRATE, WEB, WORKER, MONITOR, ENQUEUE = ROLES = (
    "rowlock_migrate", "rowlock_web", "rowlock_worker", "rowlock_monitor", "rowlock_enqueue",
)  # fmt: skip
APPLICATION = (WEB, WORKER, MONITOR, ENQUEUE)
# As a superuser, with the path that the roles have.
OWNER = "rowlock"
TABLES = "SELECT relname FROM pg_class WHERE relnamespace = 'rowlock'::regnamespace AND relkind = 'r' ORDER BY relname"
OWNERS_PATH = "ALTER ROLE rowlock SET search_path = rowlock"
# Each sequence and table that a role may write to in any way.
WRITES = """
SELECT relname FROM pg_class WHERE relnamespace = 'rowlock'::regnamespace AND CASE relkind
    WHEN 'S' THEN has_sequence_privilege(%s, oid, 'USAGE, UPDATE')
    WHEN 'r' THEN has_any_column_privilege(%s, oid, 'INSERT, UPDATE, REFERENCES')
        OR has_table_privilege(%s, oid, 'DELETE, TRUNCATE, TRIGGER') END
"""


@dataclass(frozen=True)
class RoleServer:
    """The database as superuser (`owner`), where each role reaches it, and what the server has refused."""

    owner: QueueDatabase
    log: Path

    def url(self, role: str) -> str:
        return self.owner.url.replace(f"//{OWNER}@", f"//{role}@")

    def open(self, role: str) -> psycopg.Connection:
        return psycopg.connect(self.url(role), autocommit=True)

    def tables(self) -> list[str]:
        return [row.relname for row in self.owner.rows(TABLES)]

    def writable(self, role: str) -> list[str]:
        return [row.relname for row in self.owner.rows(WRITES, role, role, role)]

    def not_refused(self, role: str, statements: Iterable[str]) -> list[str]:
        """Those of the statements that do not fail for a missing right; each in a transaction that is rolled back."""
        with closing(self.open(role)) as session:
            session.execute("SET default_transaction_read_only = off")  # a habit of a role, not a limit
            return [statement for statement in statements if not is_refused(session, statement)]

    def refusals(self) -> list[str]:
        """Every statement so far that a role had no right to."""
        lines = self.log.read_text().splitlines()
        return [line for line in lines if "permission denied" in line or "must be owner" in line]

    @contextmanager
    def acting(self, role: str) -> Iterator[None]:
        """Django's connection, and every one that it or a thread of it opens, is a session of this role."""
        known = connection.settings_dict
        before = dict(known)
        info = psycopg.conninfo.conninfo_to_dict(self.owner.url)
        connection.close()
        ContentType.objects.clear_cache()  # each database counts them for itself
        known.update(NAME=info["dbname"], USER=role, HOST=info["host"], PASSWORD="")
        try:
            yield
        finally:
            connection.close()
            known.clear()
            known.update(before)
            ContentType.objects.clear_cache()


def is_refused(session: psycopg.Connection, statement: str) -> bool:
    """Whether the role has no right to it; an answer of our own trigger means that it had."""
    try:
        with session.transaction(force_rollback=True):
            session.execute(statement)
    except psycopg.errors.InsufficientPrivilege as error:
        return "append-only" not in str(error)
    return False


@contextmanager
def role_server() -> Iterator[RoleServer]:
    """The file, the migrations as the role for them, and the file again: as docs/roles.md tells it."""
    with throw_away_server() as server:
        url = databases.named(server.url, "shop")
        databases.create(url)
        owner = QueueDatabase(url)
        owner.connection.execute(ROLES_SQL)
        owner.connection.execute(OWNERS_PATH)
        site = RoleServer(owner, server.data.parent / "server.log")
        environment = {**os.environ, "DATABASE_URL": site.url(MIGRATE), "DJANGO_SETTINGS_MODULE": "tests.settings"}
        subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=ROOT, env=environment, check=True)
        owner.close()
        owner.connection.execute(ROLES_SQL)
        owner.close()
        yield site
        owner.close()


def a_row_of_everything() -> None:
    """What pages show and `prune_history` deletes."""
    anna = person(is_superuser=True)
    old = timezone.now() - timedelta(days=90)
    for owner in (anna, User.objects.create_user("owner")):
        account = Account.objects.create(owner=owner)
        accounts.deposit(account.pk, Decimal(100))
    task = rows.failed(id=4711, finished_at=old, created_at=old, args=["a secret of the task"])
    Attempt.objects.create(id=4711, task=task, number=1, worker_id="4711", outcome="failed", finished_at=old)
    RefusedWrite.objects.create(id=4711, task_id=4711, worker_id="4711", expected_version=1, intent="fail", at=old)
    # Asked to stop by a later test: it must not be taken for dead before.
    Worker.objects.create(id="4711", hostname="host", pid=41234, lease_seconds=3600)
    CommandRun.objects.create(id=4711, name="nightly", argv=["x"])
    Order.objects.create(id=4711, customer_email="a@example.test")


def said(*argv: object) -> dict:
    """The answer of the command, which must have succeeded."""
    outcome = run(*argv, "--json")
    assert outcome.status == 0, f"{argv}: {outcome.stdout} {outcome.stderr}"
    return outcome.data


def browser() -> Client:
    client = Client(raise_request_exception=False)
    assert client.post("/admin/login/", {"username": "anna", "password": PASSWORD}).status_code == 302
    return client
