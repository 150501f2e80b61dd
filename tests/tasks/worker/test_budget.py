"""A worker says at its start which connections it may be missing, and by which limit."""

from contextlib import closing, contextmanager

import psycopg
import pytest

from tasks.exceptions import TooFewConnections
from tasks.worker import options
from tasks.worker.options import Options
from tests.databases import name_of
from tests.tasks.worker_app import tasks as handlers

ROLE = "rowlock_test_budget"
OWNER = "rowlock"


@pytest.fixture
def role(database):
    """A role that may do everything in the database, and is no superuser."""
    database.rows(f"CREATE ROLE {ROLE} LOGIN IN ROLE {OWNER}")
    yield ROLE
    database.rows(f"DROP ROLE {ROLE}")


@pytest.fixture
def url(database, role):
    """The database as this role reaches it."""
    assert f"//{OWNER}@" in database.url
    return database.url.replace(f"//{OWNER}@", f"//{role}@")


@pytest.fixture
def limited_role(database, role):
    database.rows(f"ALTER ROLE {role} CONNECTION LIMIT 5")


@pytest.fixture
def limited_database(database):
    database.rows(f'ALTER DATABASE "{name_of(database.url)}" CONNECTION LIMIT 5')


@contextmanager
def session(url):
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        yield connection


def said(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == options.__name__]


@pytest.mark.usefixtures("limited_role")
def test_the_limit_of_its_role(url, caplog):
    with session(url) as own, session(url):
        options.check(own, Options(concurrency=1))
        assert said(caplog) == [], "four of five: its own session is free by then"
        options.check(own, Options(concurrency=2))
    [line] = said(caplog)
    assert "up to 7 connections, and 4 are free" in line
    assert f"the limit of role {ROLE} allows 5, of which 1 are in use" in line


@pytest.mark.usefixtures("limited_database")
def test_the_limit_of_its_database(url, database, caplog):
    database.value("SELECT 1")  # whose session counts too
    with session(url) as own:
        options.check(own, Options(concurrency=2))
    [line] = said(caplog)
    assert f"the limit of database {name_of(database.url)} allows 5, of which 1 are in use" in line


def test_the_limit_of_the_server(url, database, caplog):
    allowed = database.value("SELECT current_setting('max_connections')::int")
    reserved = database.value("SELECT current_setting('superuser_reserved_connections')::int")
    with session(url) as own:
        options.check(own, Options(concurrency=1))
        assert said(caplog) == []
        options.check(own, Options(concurrency=allowed))
    [line] = said(caplog)
    assert f"max_connections allows {allowed - reserved}" in line


@pytest.fixture
def limited_superuser(database):
    database.rows(f"ALTER ROLE {OWNER} CONNECTION LIMIT 5")
    yield
    database.rows(f"ALTER ROLE {OWNER} CONNECTION LIMIT -1")


@pytest.mark.usefixtures("limited_superuser", "limited_database")
def test_superusers_have_no_limit_but_the_servers(database, caplog):
    assert database.value("SELECT rolsuper FROM pg_roles WHERE rolname = session_user")
    options.check(database.connection, Options(concurrency=2))
    assert said(caplog) == []


@pytest.mark.parametrize(
    ("strategy", "is_proxied", "sessions"),
    [("skip_locked", False, 3), ("skip_locked", True, 2), ("pessimistic", False, 2), ("optimistic", False, 2)],
)
def test_what_a_process_opens(settings, strategy, is_proxied, sessions):
    settings.ROWLOCK = {"DIRECT_DATABASE_URL": "postgres:///direct" if is_proxied else ""}
    for processes in (1, 4):
        assert options.most_sessions(Options(strategy=strategy, concurrency=processes)) == 1 + sessions * processes


@pytest.mark.parametrize(
    ("threads", "coroutines", "sessions"), [(8, 1, 1 + 8 + 1), (1, 4, 1 + 1 + 4), (32, 1000, 1 + 32 + 8)]
)
def test_what_a_process_of_many_tasks_opens(threads, coroutines, sessions):
    """Its own, one for each thread, and those in which coroutines use the ORM."""
    for processes in (1, 4):
        many = Options(concurrency=processes, threads=threads, coroutines=coroutines)
        assert options.most_sessions(many) == 1 + sessions * processes


def test_who_can_never_run_is_refused(url, database, role):
    database.rows(f"ALTER ROLE {role} CONNECTION LIMIT 1")
    with session(url) as own, pytest.raises(TooFewConnections, match="needs 2 connections at least"):
        options.check(own, Options())


def test_a_worker_says_so_and_works(url, database, limited_role, start_worker):
    [task_id] = database.enqueue(handlers.work)
    worker = start_worker("--concurrency", 2, "--burst", DATABASE_URL=url)
    assert worker.wait() == 0
    assert database.task(task_id).status == "COMPLETED"
    assert worker.log().count("up to 7 connections") == 1


def test_a_worker_that_cannot_run_ends_at_once(url, database, role, start_worker):
    database.rows(f"ALTER ROLE {role} CONNECTION LIMIT 1")
    worker = start_worker(DATABASE_URL=url)
    assert worker.wait() == 1
    assert "A worker needs 2 connections at least" in worker.log()
