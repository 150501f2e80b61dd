"""A way to the database that takes every byte and passes none on: no error, no end of the connection, only silence."""

import time
from contextlib import closing, contextmanager
from urllib.parse import quote

import psycopg
import pytest
from django.db import connection
from psycopg.conninfo import conninfo_to_dict

from tasks.support.database import (
    PromptConnection,
    connect_directly,
    fetch,
    name_sessions_of_handlers,
    read_committed,
    transaction,
)
from tasks.worker import session
from tests.commands import database_url
from tests.relay import relay
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

LEASE_SECONDS = 6


def ask_once_it_is_silent(prompt, way):
    with transaction(prompt):
        fetch(prompt, "SELECT 1")
        way.silence()
        fetch(prompt, "SELECT 1")


@pytest.mark.django_db
def test_a_question_that_is_not_answered_ends_the_connection_and_not_the_patience(settings):
    """Within a transaction too, whose end is not waited for a second time."""
    with relay(database_url()) as way:
        settings.ROWLOCK = {"DIRECT_DATABASE_URL": way.url}
        with closing(connect_directly("rowlock:test", answer_seconds=0.5)) as prompt:
            assert fetch(prompt, "SELECT 1 AS one") == [{"one": 1}]
            began = time.monotonic()
            with pytest.raises(psycopg.OperationalError, match=r"silent for 0.5 s"):
                ask_once_it_is_silent(prompt, way)
            assert prompt.closed
            assert 0.5 <= time.monotonic() - began < 10
    connection.close()


@pytest.mark.django_db
def test_an_error_without_a_code_of_the_server_s_does_not_end_the_connection():
    with closing(connect_directly("rowlock:test")) as prompt:
        with prompt.pipeline():
            with pytest.raises(psycopg.errors.DivisionByZero):
                prompt.execute("SELECT 1 / 0").fetchone()
            with pytest.raises(psycopg.errors.PipelineAborted):
                prompt.execute("SELECT 1").fetchone()
        assert fetch(prompt, "SELECT 1 AS one") == [{"one": 1}]


def test_a_transaction_that_stands_still_ends_with_the_lease(database, settings):
    """A process that was frozen in the middle of one would hold its rows against recovery for longer."""
    settings.ROWLOCK = {"DIRECT_DATABASE_URL": database.url, "LEASE_SECONDS": 1}
    with closing(connect_directly("rowlock:test")) as frozen:
        frozen.execute("BEGIN")
        pid = frozen.info.backend_pid
        wait_until(lambda: not database.rows("SELECT 1 FROM pg_stat_activity WHERE pid = %s", pid), seconds=20)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("given", "lease_seconds", "milliseconds"),
    [
        ("", 30, 10_000),
        ("", 6, 2_000),
        ("", 3, 2_000),
        ("", 600, 10_000),
        (15_000, 6, 2_000),
        (1_500, 6, 1_500),
        (15_000, 90, 10_000),
    ],
)
def test_a_dead_path_is_given_up_while_the_lease_has_time_for_another(settings, given, lease_seconds, milliseconds):
    """A third of the lease, between 2 and 10 s, or less where the settings of the database say less."""
    settings.ROWLOCK = {"LEASE_SECONDS": lease_seconds}
    with patched_options(tcp_user_timeout=given), closing(connect_directly("rowlock:test")) as side:
        assert side.info.get_parameters()["tcp_user_timeout"] == str(milliseconds)
    with patched_options(tcp_user_timeout=given), read_committed():
        name_sessions_of_handlers("rowlock:test")
        assert connection.get_connection_params()["tcp_user_timeout"] == milliseconds


@contextmanager
def patched_options(**changed):
    """Other options of Django's own database, for a while; the empty ones are left out."""
    with pytest.MonkeyPatch.context() as patch:
        options = {**connection.settings_dict["OPTIONS"], **changed}
        kept = {name: value for name, value in options.items() if value != ""}
        patch.setitem(connection.settings_dict, "OPTIONS", kept)
        yield


def test_a_silent_server_that_the_address_names_first_is_passed_by_soon(database, settings):
    """The second one is the primary by then, and each attempt to connect begins with the first."""
    server = conninfo_to_dict(database.url)
    with relay(database.url) as way:
        way.silence()
        hosts = quote(f"127.0.0.1,{server['host']}", safe="")
        ports = f"{way.listener_port},{server.get('port', 5432)}"
        address = f"postgres://{server['user']}@/{server['dbname']}?host={hosts}&port={ports}"
        settings.ROWLOCK = {"DIRECT_DATABASE_URL": f"{address}&target_session_attrs=read-write"}
        began = time.monotonic()
        with closing(session.connect("w1")) as found:
            assert session.CONNECT_SECONDS <= time.monotonic() - began < 5 * session.CONNECT_SECONDS
            assert found.info.host == server["host"]


@pytest.mark.django_db
def test_a_notification_may_be_waited_for_without_end():
    with closing(connect_directly("rowlock:test", answer_seconds=0.1)) as prompt:
        assert isinstance(prompt, PromptConnection)
        assert list(prompt.notifies(timeout=0.3)) == []
        assert not prompt.closed


def test_a_worker_whose_way_is_silent_loses_its_tasks_with_its_lease_and_comes_back(database, ledger, start_worker):
    """Its supervisor finds it out in time, others take over, and once there is a way again it is of use again."""
    with relay(database.url) as way:
        cut_off = start_worker(DIRECT_DATABASE_URL=way.url, ROWLOCK_LEASE_SECONDS=LEASE_SECONDS)
        [task_id] = database.enqueue(handlers.work, 600.0, 0.0)
        wait_until(lambda: ledger.effects(task_id))
        other = start_worker(ROWLOCK_LEASE_SECONDS=LEASE_SECONDS)
        wait_until(lambda: database.value("SELECT count(*) FROM tasks_worker") == 2)
        way.silence()
        cut_off.wait_until_it_says(f"silent for {LEASE_SECONDS / 3:g} s", seconds=60)
        task = database.wait_for(task_id, "COMPLETED", seconds=60)
        assert task.attempt == 2
        assert database.outcomes(task_id) == ["abandoned"]
        way.speak()
        other.stop()
        # The hung task's worker learns that it was convicted, and is ended and replaced.
        [task_id] = database.enqueue(handlers.work)
        assert database.wait_for(task_id, "COMPLETED", seconds=60).attempt == 1
        assert cut_off.stop() == 0
