"""The holders of the lock that a statement met: named from catalogs alone, with the command that ends each."""

import contextlib
import re
import shlex
import threading
from collections.abc import Iterator

import psycopg
import pytest
from django.db import DatabaseError, connection, transaction

from dashboard.embedded import cluster
from dashboard.embedded.server import running
from tasks.diagnosis import lock_holders
from tasks.diagnosis.lock_holders import HOLDERS, Holder
from tasks.support.database import fetch
from tests.commands import run
from tests.postgres import THROW_AWAY
from tests.sessions import session, wait_until_blocked
from tests.tasks import rows
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def met(statement: str = "SELECT count(*) FROM tasks_task") -> DatabaseError:
    """The error of a statement that waits a moment for a lock."""
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '50ms'")
        with pytest.raises(DatabaseError) as caught:
            cursor.execute(statement)
        cursor.execute("RESET lock_timeout")
    return caught.value


def named(error: DatabaseError) -> list[Holder]:
    return lock_holders.holders(connection, error)


@contextlib.contextmanager
def waiting(conn: psycopg.Connection, statement: str) -> Iterator[None]:
    """The session waits for a lock; the block must free it."""
    thread = threading.Thread(target=conn.execute, args=(statement,))
    thread.start()
    wait_until_blocked(conn.info.backend_pid)
    yield
    thread.join()


def test_the_holder_of_a_table_is_named_and_its_command_ends_it():
    with session("psql") as other:
        other.execute("LOCK TABLE tasks_task")
        [holder] = named(met())
        beginning = f"pid {other.info.backend_pid} · psql · user {other.info.user} · holds tasks_task · "
        assert holder.sentence.startswith(f"{beginning}idle in transaction · since ")
        assert re.search(r" \([\d.]+ ms\) · LOCK TABLE tasks_task$", holder.sentence)
        outcome = run(*shlex.split(holder.command)[2:])
        assert outcome.status == 0
        wait_until(lambda: lock_holders.find(connection) == [])
        with pytest.raises(psycopg.OperationalError):
            other.execute("SELECT 1")


def test_all_of_our_tables_may_be_locked():
    tables = connection.introspection.django_table_names()
    with session("psql") as other:
        other.execute(f"LOCK TABLE {', '.join(tables)}, django_migrations")
        [holder] = named(met())
    assert sorted(holder.holds) == sorted([*tables, "django_migrations"])


def test_the_table_of_another_program_is_not_ours():
    with session("psql") as other, session("psql") as stranger:
        other.execute("LOCK TABLE tasks_task")
        stranger.execute("CREATE TABLE elsewhere (id int)")
        assert [holder.pid for holder in named(met())] == [other.info.backend_pid]


def test_behind_a_migration_that_waits_the_reader_is_named_first():
    with session("report") as reader, session("migrate") as migration:
        pids = reader.info.backend_pid, migration.info.backend_pid
        reader.execute("SELECT count(*) FROM tasks_task")
        with waiting(migration, "LOCK TABLE tasks_task"):
            first, second = named(met())
            reader.rollback()
    assert (first.pid, second.pid) == pids
    assert "signal_backend" in first.command
    assert f"waits for tasks_task, and all others behind it · blocked by pid {first.pid} · active" in second.sentence
    assert second.command == "", "it is not the one to end"


@pytest.mark.parametrize("nowait", ["NOWAIT", ""])
def test_the_holder_of_a_row_is_named_and_a_mere_writer_of_its_table_is_not(nowait):
    task = rows.ready()
    with session("psql") as other, session("app") as writer:
        writer.execute("UPDATE tasks_task SET priority = 1 WHERE id = 0")
        other.execute("SELECT FROM tasks_task WHERE id = %s FOR UPDATE", [task.pk])
        [holder] = named(met(f"SELECT FROM tasks_task WHERE id = {task.pk} FOR UPDATE {nowait}"))
        assert holder.pid == other.info.backend_pid
    assert "has locked rows of tasks_task" in holder.sentence


def test_a_secret_of_its_statement_is_not_shown():
    with session("psql") as other:
        other.execute("LOCK TABLE tasks_task /* password hunter2 */")
        [holder] = named(met())
    assert holder.statement == "LOCK TABLE tasks_task /* [redacted] */"


def test_a_long_statement_is_short_and_a_name_is_one_line():
    with session("a\nb") as other:
        other.execute("LOCK TABLE tasks_task")
        other.execute(f"SELECT {'1 + ' * 100} 1")
        [holder] = named(met())
    assert len(holder.statement) == lock_holders.LONGEST_QUERY
    assert "\n" not in holder.sentence


def test_a_session_of_the_pages_is_named_and_not_to_be_ended():
    with session("rowlock:web") as other:
        other.execute("LOCK TABLE tasks_task")
        [holder] = named(met())
        assert (holder.pid, holder.command) == (other.info.backend_pid, "")


def test_without_the_pages_sql_ends_it(monkeypatch):
    monkeypatch.setattr(lock_holders, "get_commands", dict)
    with session("psql") as other:
        other.execute("LOCK TABLE tasks_task")
        [holder] = named(met())
        assert holder.command == f"select pg_terminate_backend({other.info.backend_pid});"


def test_other_errors_name_nobody():
    with session("psql") as other:
        other.execute("LOCK TABLE tasks_task")
        assert named(met("SELECT 1 / 0")) == []


def test_in_a_transaction_that_has_failed_nobody_can_be_asked_for():
    with session("psql") as other, transaction.atomic(), connection.cursor() as cursor:
        other.execute("LOCK TABLE tasks_task")
        cursor.execute("SET LOCAL lock_timeout = '50ms'")
        with pytest.raises(DatabaseError) as caught:
            cursor.execute("SELECT FROM tasks_task")
        assert named(caught.value) == []
        transaction.set_rollback(True)


def test_a_prepared_transaction_is_named_with_what_ends_it():
    with (
        cluster.folder() as folder,
        running(folder / "home", runs="a test", settings={**THROW_AWAY, "max_prepared_transactions": "2"}) as server,
        psycopg.connect(server.url, autocommit=True) as conn,
    ):
        conn.execute("CREATE TABLE t (id int)")
        conn.execute("BEGIN")
        conn.execute("LOCK TABLE t")
        conn.execute("PREPARE TRANSACTION 'billing''s'")
        [holder] = [Holder(**row) for row in fetch(conn, HOLDERS, {"tables": ["t"], "is_row": False})]
        assert holder.sentence.startswith("prepared transaction billing's · holds t · since ")
        conn.execute(holder.command)
        assert fetch(conn, HOLDERS, {"tables": ["t"], "is_row": False}) == []
