"""A command that meets a locked table names the session that holds it, and never hangs."""

import pytest
from django.db import connection

from tasks.operations import verb
from tasks.support import database
from tests.commands import run
from tests.sessions import session

pytestmark = pytest.mark.django_db(transaction=True)
ID = "00000000-0000-0000-0000-000000000000"
LINES = [
    "acknowledge failed --until-it-grows --reason known",
    "add_schedule a orders.tasks.send_shipped_emails --every 1m",
    "cancel_tasks 1",
    "check_accounts",
    "check_tasks",
    "configure_queue a --recovery ask",
    "delete_schedule a",
    "edit_schedule a --missed all",
    "edit_tasks 1 --set-priority 1",
    "enqueue_task orders.tasks.send_shipped_emails",
    "forget_command a",
    "list_schedules",
    "pause_queue a",
    "pause_schedule a",
    "prune_history --older-than 1d",
    "prune_tasks --older-than 1d",
    "quarantine_tasks 1",
    "queue_status",
    "recover_tasks",
    "release_lock a --fence 1",
    f"release_unstarted {ID}",
    "requeue_tasks 1",
    "resolve_emails 1 --as sent",
    "resume_queue a",
    "resume_schedule a",
    "run_schedule a",
    "send_shipped_emails",
    "show_lock_history --at 2026-11-21T03:10Z",
    "stop_bulk_run 1",
    "stop_lab_run 1",
    f"stop_worker {ID}",
    "transfer 1 2 1.00",
    "transfer 1 2 1.00 --strategy optimistic",
]


@pytest.fixture
def impatient(monkeypatch):
    """The limits of commands are milliseconds here, and their session is new, as in a process."""
    for module, name in ((database, "LIMIT_LOCK_WAITS"), (verb, "LIMIT_WAITS")):
        monkeypatch.setattr(module, name, getattr(module, name).replace("'2s'", "'50ms'"))
    connection.close()
    yield
    connection.close()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("line", LINES)
def test_who_locks_all_tables_is_named(line):
    with session("psql") as other:
        other.execute(f"LOCK TABLE {', '.join(connection.introspection.django_table_names())}")
        connection.close()
        outcome = run(*line.split())
        pid, user = other.info.backend_pid, other.info.user
    assert outcome.status == 1
    assert f"\npid {pid} · psql · user {user} · holds " in outcome.stderr
    assert f"\n  python manage.py signal_backend {pid} --started " in outcome.stderr


@pytest.mark.usefixtures("impatient")
def test_who_locks_a_row_is_named():
    run("pause_queue", "payouts")
    with session("psql") as other:
        other.execute("SELECT FROM tasks_queue FOR UPDATE")
        outcome = run("resume_queue", "payouts", "--json")
        pid = other.info.backend_pid
    assert outcome.status == 1
    assert f"pid {pid} · psql" in outcome.data["error"]


def test_a_limit_of_the_role_stands(monkeypatch):
    monkeypatch.setenv("PGOPTIONS", "-c lock_timeout=77ms")
    connection.close()
    with database.short_lock_waits():
        assert timeout() == "77ms"
    connection.close()


def test_only_sessions_of_commands_are_limited():
    connection.close()
    with database.short_lock_waits():
        assert timeout() == "2s"
    connection.close()
    assert timeout() == "0"


def test_behind_a_pooling_proxy_the_session_is_left_as_it_is(settings):
    settings.ROWLOCK = {**settings.ROWLOCK, "DIRECT_DATABASE_URL": "postgres://elsewhere/db"}
    connection.close()
    with database.short_lock_waits():
        assert timeout() == "0"
    connection.close()


def timeout() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        return cursor.fetchone()[0]
