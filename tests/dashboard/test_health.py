"""The probes, and what pages answer when the database is in trouble."""

import os
import signal
import threading
import time

import environ
import pytest
from django.contrib.auth.models import Permission, User
from django.contrib.sessions.exceptions import SessionInterrupted
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client

from dashboard import environment, middleware
from tests.html import flat
from tests.outages import database_at
from tests.people import PASSWORD, client_of
from tests.sessions import session
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _no_probe_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "_latest", None)


@pytest.fixture
def no_database(tmp_path):
    with database_at(str(tmp_path)):
        yield


@pytest.fixture
def page_session():
    """Django's connection as a process that serves pages opens it; commands and the other tests have no limits."""
    connection.close()
    limits = environment.session_limits(environ.Env(), ["/venv/bin/gunicorn", "dashboard.wsgi"])
    connection.settings_dict["OPTIONS"]["options"] = limits
    yield
    connection.close()
    del connection.settings_dict["OPTIONS"]["options"]


def test_healthz_answers_ok_without_login(client):
    answer = client.get("/healthz")
    assert (answer.status_code, answer.text) == (200, "ok")
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.usefixtures("no_database")
def test_healthz_needs_no_database(client):
    assert client.get("/healthz").status_code == 200


def test_readyz_answers_when_all_is_well(client):
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()) == (200, {"ready": True, "reasons": []})


@pytest.mark.usefixtures("no_database")
def test_readyz_says_that_the_database_cannot_be_reached(client, tmp_path):
    answer = client.get("/readyz")
    assert answer.status_code == 503
    [reason] = answer.json()["reasons"]
    assert "The database cannot be used (OperationalError)" in reason
    assert str(tmp_path) not in reason


def test_readyz_names_the_migrations_that_are_missing(client):
    recorder = MigrationRecorder(connection)
    [(app, name)] = MigrationLoader(connection).graph.leaf_nodes("tasks")
    recorder.record_unapplied(app, name)
    try:
        answer = client.get("/readyz")
    finally:
        recorder.record_applied(app, name)
    assert answer.status_code == 503
    assert f"{app}.{name}" in answer.json()["reasons"][0]


@pytest.mark.usefixtures("page_session")
def test_readyz_tells_a_locked_table_from_a_lost_database_and_names_nobody(client):
    with session("psql") as other:
        other.execute("LOCK TABLE django_migrations")
        answer = client.get("/readyz")
        pid = other.info.backend_pid
    assert answer.status_code == 503
    [reason] = answer.json()["reasons"]
    assert "is locked; `python manage.py show_locks --tree` names who" in reason
    assert (str(pid) in reason, "cannot be used" in reason) == (False, False)


def test_readyz_answers_within_two_seconds_when_the_database_is_frozen(client, monkeypatch, private_server):
    """Twice: the second caller finds the first one's probe still at it, which has longer than the answer here."""
    assert middleware.ANSWER_SECONDS < 2
    monkeypatch.setattr(middleware, "CONNECT_SECONDS", 60)
    main = private_server.server.process.pid
    os.kill(main, signal.SIGSTOP)
    try:
        with database_at(str(private_server.server.socket_folder)):
            for _ in range(2):
                answer = client.get("/readyz")
                assert answer.status_code == 503
                assert "did not answer" in answer.json()["reasons"][0]
    finally:
        os.kill(main, signal.SIGCONT)


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_probes_come_by_any_address_and_without_tls(path, settings):
    settings.ALLOWED_HOSTS = ["rowlock.example"]
    settings.SECURE_SSL_REDIRECT = True
    assert Client(headers={"host": "10.1.2.3:8000"}).get(path).status_code == 200


@pytest.mark.parametrize("address", ["/admin/", "/admin/tasks/task/", "/admin/tasks/task/1/"])
def test_pages_answer_503_with_the_reason_when_the_database_is_down(address, tmp_path):
    client = client_of("Viewers")
    with database_at(str(tmp_path)):
        answer = client.get(address)
    assert answer.status_code == 503
    assert "The database does not answer." in answer.text
    assert str(tmp_path) not in answer.text
    assert answer["Retry-After"] == "5"
    assert f'href="{address}"' in answer.text


@pytest.mark.usefixtures("no_database")
def test_logging_in_answers_503_too(client):
    answer = client.post("/admin/login/", {"username": "anna", "password": "x"})
    assert answer.status_code == 503


@pytest.mark.usefixtures("page_session")
def test_f21_a_page_does_not_wait_for_a_table_that_is_locked():
    client = client_of("Viewers")
    with session() as other:
        other.execute("LOCK TABLE tasks_task")
        answer = client.get("/admin/tasks/task/")
    assert answer.status_code == 503
    assert "is locked, perhaps by a migration" in answer.text  # only a limit of its own ends that wait


@pytest.mark.usefixtures("page_session")
@pytest.mark.parametrize("may_see", [True, False])
def test_a_locked_page_names_the_holder_to_whoever_may_see_sessions(may_see):
    client = client_of(*(["Viewers"] if may_see else []))
    User.objects.get().user_permissions.add(Permission.objects.get(codename="view_task"))
    with session("psql") as other:
        other.execute("LOCK TABLE tasks_task")
        answer = client.get("/admin/tasks/task/")
        pid, user = other.info.backend_pid, other.info.user
    text = flat(answer.text)
    assert answer.status_code == 503
    assert "<h1>The database is locked</h1>" in text
    assert (f"pid {pid} · psql · user {user} · holds tasks_task · idle in transaction" in text) == may_see
    assert (f"python manage.py signal_backend {pid} --started " in text) == may_see
    assert (str(pid) in text, "python manage.py show_locks --tree" in text) == (may_see, not may_see)


@pytest.mark.usefixtures("page_session")
def test_a_page_that_was_stopped_behind_a_lock_names_its_holder_too():
    client = client_of("Viewers")
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = '100ms'")
    with session("psql") as other:
        other.execute("LOCK TABLE tasks_task")
        answer = client.get("/admin/tasks/task/")
        pid = other.info.backend_pid
    assert "took too long" in answer.text
    assert f"pid {pid} · psql" in answer.text


WAYS = {
    "a page": ("get", "/admin/", {}),
    "an address that is not there": ("get", "/nowhere/", {}),
    "logging in once more": ("post", "/admin/login/", {"username": "anna", "password": PASSWORD}),
    "logging out": ("post", "/admin/logout/", {}),
}


@pytest.mark.usefixtures("page_session")
@pytest.mark.parametrize(
    ("table", "mode"),
    [("django_session", "ACCESS EXCLUSIVE"), ("django_session", "EXCLUSIVE"), ("auth_user", "ACCESS EXCLUSIVE")],
)
@pytest.mark.parametrize("way", WAYS)
def test_f21_what_needs_the_sessions_of_people_says_that_their_table_is_locked(way, table, mode):
    """The second lock lets sessions be read and not written; then only those fail that write them."""
    client = client_of("Viewers")
    client.raise_request_exception = False
    method, path, form = WAYS[way]
    with session() as other:
        other.execute(f"LOCK TABLE {table} IN {mode} MODE")
        began = time.monotonic()
        answer = getattr(client, method)(path, form)
        seconds, pid = time.monotonic() - began, other.info.backend_pid
    if mode == "EXCLUSIVE" and method == "get":
        assert answer.status_code == (404 if path == "/nowhere/" else 200)
        return
    assert answer.status_code == 503
    assert "is locked, perhaps by a migration" in answer.text
    assert "python manage.py show_locks" in answer.text
    assert answer["Retry-After"] == "5"
    is_reader_known = mode == "EXCLUSIVE"
    assert (f"pid {pid} · rowlock:test" in answer.text) == is_reader_known
    assert ("python manage.py show_locks --tree" in answer.text) != is_reader_known
    assert is_reader_known or seconds < 4, "the tables that tell are waited for once"


def test_errors_of_the_program_keep_their_status(client, rf):
    assert client.get("/", headers={"host": "elsewhere.test"}).status_code == 400
    assert middleware.bad_request(rf.get("/"), SessionInterrupted()).status_code == 400
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        assert middleware.server_error(rf.get("/")).status_code == 500


def test_f21_a_statement_that_takes_too_long_is_stopped_and_said():
    client = client_of("Viewers")
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = '100ms'")
    with session() as other:
        other.execute("LOCK TABLE tasks_task")
        answer = client.get("/admin/tasks/task/")
    connection.close()
    assert answer.status_code == 503
    assert "took too long" in answer.text


REFERRERS = {
    "http://testserver/admin/ops/stale/?after=7": "/admin/ops/stale/?after=7",
    "http://testserver//elsewhere.test/": "/elsewhere.test/",
    "http://elsewhere.test/admin/ops/stale/": "/admin/",
    "": "/admin/",
}


@pytest.mark.parametrize(("referrer", "leads_to"), REFERRERS.items())
def test_what_was_pressed_in_vain_leads_back_to_its_page(referrer, leads_to, tmp_path):
    client = client_of("Operators")
    with database_at(str(tmp_path)):
        answer = client.post("/admin/ops/stale/take-back/", headers={"referer": referrer})
    assert answer.status_code == 503
    assert f'<a class="button primary" href="{leads_to}">Back to the page' in flat(answer.text)
    assert "before you press again" in flat(answer.text)


def test_tables_that_are_not_there_are_said():
    client = client_of("Viewers")
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE tasks_queue RENAME TO elsewhere")
    try:
        answer = client.get("/admin/tasks/task/")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE elsewhere RENAME TO tasks_queue")
    assert answer.status_code == 503
    assert "manage.py migrate" in answer.text


OTHERS = "datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
OTHER_SESSIONS = f"SELECT count(*) FROM pg_stat_activity WHERE {OTHERS}"
WAITING_SESSIONS = f"{OTHER_SESSIONS} AND wait_event_type = 'Lock'"
SESSIONS_EVER = "SELECT sessions FROM pg_stat_database WHERE datname = current_database()"


def number(statement: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchone()[0]


def sessions_ever() -> int:
    """How many there have been, once this test's is the only one left: all have counted themselves by then."""
    wait_until(lambda: number(OTHER_SESSIONS) == 0)
    return number(SESSIONS_EVER)


def test_all_who_ask_within_a_second_share_one_session_that_is_not_left_behind(client, monkeypatch):
    monkeypatch.setattr(middleware, "ANSWER_SECONDS", 60)
    monkeypatch.setattr(middleware, "KEPT_SECONDS", 60)
    statuses: list[int] = []
    before = sessions_ever()
    callers = [threading.Thread(target=lambda: statuses.append(Client().get("/readyz").status_code)) for _ in range(10)]
    with session() as other:
        other.execute("LOCK TABLE django_migrations")
        for caller in callers:
            caller.start()
        wait_until(lambda: number(WAITING_SESSIONS) == 1)
        probe = middleware._latest
        with monkeypatch.context() as patch:
            patch.setattr(middleware, "KEPT_SECONDS", 0)
            assert middleware.shared_probe() is probe, "one that is under way is shared for as long as it takes"
    for caller in callers:
        caller.join()
    assert client.get("/readyz").status_code == 200
    assert statuses == [200] * 10
    assert sessions_ever() - before == 2  # the probe's, and that of the lock


def test_an_answer_is_kept_for_a_second_and_no_longer(client):
    assert client.get("/readyz").status_code == 200
    before = sessions_ever()
    middleware._latest = middleware._latest._replace(began=time.monotonic() - 1)
    assert client.get("/readyz").status_code == 200
    assert sessions_ever() - before == 1
