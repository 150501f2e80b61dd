"""The embedded PostgreSQL in its daily life: who runs it, where it works, who may connect, what it keeps."""

import os
import pwd
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from dashboard.embedded import ServerError, home, running_url
from dashboard.embedded.server import running
from tests.dashboard.servers import (
    IS_ROOT,
    ROOT,
    Supervisor,
    copy_of_the_code,
    launched,
    open_folder,
    python_for,
    supervised,
)
from tests.postgres import PrivateServer, throw_away_server

needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root can be several users")


def modes(path: Path) -> list[int]:
    return [stat.S_IMODE(parent.stat().st_mode) for parent in path.parents]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that every user can reach."""
    with open_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def plain(folder) -> Iterator[Supervisor]:
    """A server in a usual place, for those who only look at it."""
    with supervised(home(folder)) as supervisor:
        yield supervisor


@pytest.fixture(scope="module")
def odd(tmp_path_factory) -> Iterator[Supervisor]:
    """A server at a long and strange path, started in a strange environment."""
    variables = {"PGPORT": "1", "PGDATA": "/nowhere", "PGOPTIONS": "-c nonsense=1", "LC_ALL": "no_LANG"}
    place = tmp_path_factory.mktemp("odd") / ("long" * 40) / "a path, with 'quotes' = and ünicode"
    with supervised(place / "home", **variables, TMPDIR="/nowhere") as supervisor:
        yield supervisor


@pytest.fixture(scope="module")
def code() -> Iterator[Path]:
    """The code and its packages, where every user can read them."""
    with open_folder() as folder:
        copy_of_the_code(folder)
        yield folder


@pytest.fixture(scope="module")
def breakable() -> Iterator[PrivateServer]:
    with throw_away_server() as server:
        yield PrivateServer(server)


@pytest.fixture
def closed_folder(tmp_path):
    """A folder below one that only its owner may enter, as a checkout below /root is."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "checkout").mkdir()
    return closed / "checkout"


def test_it_serves_the_newest_postgresql_of_the_wheel(plain):
    [(version, user, database)] = plain.query("SELECT version(), current_user, current_database()")
    assert version.startswith("PostgreSQL 18")
    assert (user, database) == ("rowlock", "rowlock")


@needs_root
def test_root_has_another_user_run_it(plain, folder):
    assert plain.server.uids().real == pwd.getpwnam("nobody").pw_uid
    assert plain.query("SHOW data_directory") == [(str(home(folder) / "data"),)]


def test_only_its_owner_reaches_the_socket_and_there_is_no_tcp(plain):
    socket = plain.socket_folder / ".s.PGSQL.5432"
    assert stat.S_IMODE(plain.socket_folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(socket.stat().st_mode) == 0o700
    assert plain.server.net_connections("inet") == []


def test_a_second_run_is_refused_and_told_who_runs(plain, folder):
    with launched(home(folder)) as second:
        _, message = second.communicate(timeout=20)
        assert second.returncode == 1
        assert f"process {plain.process.pid} (the tests' server)" in message
        assert len(message.splitlines()) == 1
        assert plain.query("SELECT 1") == [(1,)]


def test_an_odd_path_and_an_odd_environment_change_nothing(odd):
    assert odd.query("SHOW port") == [("5432",)]


def test_a_long_path_does_not_lengthen_the_sockets(odd):
    assert len(str(odd.socket_folder)) < 60


def test_two_checkouts_run_at_once(plain, odd):
    plain.query("CREATE TABLE of_one ()")
    assert odd.query("SELECT to_regclass('of_one')") == [(None,)]


def test_below_a_closed_folder_it_works_opens_nothing_and_keeps_its_data(closed_folder):
    before = modes(home(closed_folder))
    with supervised(home(closed_folder)) as supervisor:
        supervisor.query("CREATE TABLE kept AS SELECT 42 AS answer")
        assert supervisor.server.uids().real == (pwd.getpwnam("nobody").pw_uid if IS_ROOT else os.geteuid())
        assert Path(supervisor.server.cwd()) == home(closed_folder) / "data"
        assert running_url(closed_folder) == supervisor.url
        assert supervisor.terminate() == 0
        assert running_url(closed_folder) is None
    assert modes(home(closed_folder)) == before
    with supervised(home(closed_folder)) as supervisor:
        assert supervisor.query("SELECT answer FROM kept") == [(42,)]


@needs_root
def test_binaries_that_the_servers_user_cannot_read_are_copied(code, tmp_path):
    code.chmod(0o700)
    try:
        with supervised(tmp_path / "home", PYTHONPATH=str(code)) as supervisor:
            assert str(code) not in supervisor.server.exe()
            assert supervisor.query("SELECT to_tsvector('english', 'locks') <> ''") == [(True,)]
            supervisor.terminate()
            assert not supervisor.socket_folder.parent.exists()
    finally:
        code.chmod(0o755)


def test_an_ordinary_user_runs_it_alone(code):
    account = pwd.getpwnam("nobody") if IS_ROOT else None
    place = code / "place"
    place.mkdir()
    if account:
        os.chown(place, account.pw_uid, account.pw_gid)
    python = python_for(account) if account else sys.executable
    with supervised(place / "home", account=account, python=python, PYTHONPATH=str(code)) as supervisor:
        assert supervisor.server.uids().real == psutil.Process(supervisor.process.pid).uids().real != 0
        assert supervisor.query("SELECT 1") == [(1,)]
        assert supervisor.terminate() == 0


@needs_root
def test_a_home_of_another_user_is_refused_in_one_line(code):
    account = pwd.getpwnam("nobody")
    options = {"account": account, "python": python_for(account), "PYTHONPATH": str(code)}
    with launched(code / "var" / "postgres", **options) as process:
        _, message = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "belongs to another user" in message
    assert len(message.splitlines()) == 1


def test_finding_it_needs_the_standard_library_alone(tmp_path):
    code = "import sys, pathlib, dashboard.embedded as e; print(e.running_url(pathlib.Path(sys.argv[1])))"
    bare = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({str(ROOT)!r}); {code}", str(tmp_path)]
    assert subprocess.run(bare, capture_output=True, text=True, check=True).stdout == "None\n"


def test_a_server_that_cannot_start_says_so_and_frees_the_home(tmp_path):
    with pytest.raises(ServerError, match="ended while it started"), running(tmp_path, runs="", settings={"port": "x"}):
        pass
    assert "invalid value" in (tmp_path / "server.log").read_text()
    with supervised(tmp_path) as supervisor:
        assert supervisor.query("SELECT 1") == [(1,)]


def test_a_restart_keeps_the_address(breakable):
    url = breakable.url
    breakable.restart()
    assert breakable.url == url
    with breakable.connect() as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_crashed_backend_takes_every_session_with_it(breakable):
    with breakable.connect() as bystander:
        breakable.crash_backend()
        with pytest.raises(psycopg.OperationalError):
            bystander.execute("SELECT 1")
    assert breakable.serves()
