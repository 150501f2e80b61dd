"""The embedded PostgreSQL in its daily life: who runs it, where it works, who may connect, what it keeps."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import psycopg
import pytest

from dashboard.embedded import home, running_url
from dashboard.embedded.exceptions import ServerError
from dashboard.embedded.server import running
from dashboard.processes import Account
from tests.dashboard.servers import (
    IS_ROOT,
    ROOT,
    copy_of_the_code,
    launched,
    open_folder,
    python_for,
    supervised,
)

needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root can be several users")


def modes(path: Path) -> list[int]:
    return [stat.S_IMODE(parent.stat().st_mode) for parent in path.parents]


@pytest.fixture
def closed_folder(tmp_path):
    """A folder below one that only its owner may enter, as a checkout below /root is."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "checkout").mkdir()
    return closed / "checkout"


def test_it_serves_the_newest_postgresql_of_the_wheel(tmp_path):
    with supervised(tmp_path / "home") as supervisor:
        [(version, user, database)] = supervisor.query("SELECT version(), current_user, current_database()")
    assert version.startswith("PostgreSQL 18")
    assert (user, database) == ("rowlock", "rowlock")


@needs_root
def test_root_has_another_user_run_it():
    with open_folder() as folder, supervised(folder / "home") as supervisor:
        assert supervisor.server.uids().real == Account.named("nobody").uid
        assert supervisor.query("SHOW data_directory") == [(str(folder / "home" / "data"),)]


@needs_root
def test_below_a_closed_folder_it_works_and_opens_nothing(closed_folder):
    before = modes(closed_folder / "home")
    with supervised(closed_folder / "home") as supervisor:
        supervisor.query("CREATE TABLE kept AS SELECT 1 AS number")
        assert supervisor.server.uids().real == Account.named("nobody").uid
        assert Path(supervisor.server.cwd()) == closed_folder / "home" / "data"
    assert modes(closed_folder / "home") == before


@needs_root
def test_binaries_that_the_servers_user_cannot_read_are_copied(closed_folder, tmp_path):
    copy_of_the_code(closed_folder)
    with supervised(tmp_path / "home", PYTHONPATH=str(closed_folder)) as supervisor:
        assert str(closed_folder) not in supervisor.server.exe()
        assert supervisor.query("SELECT to_tsvector('english', 'locks') <> ''") == [(True,)]
        supervisor.terminate()
        assert not supervisor.socket_folder.parent.exists()


def test_an_ordinary_user_runs_it_alone():
    account = Account.named("nobody") if IS_ROOT else None
    with open_folder() as folder:
        copy_of_the_code(folder)
        place = folder / "place"
        place.mkdir()
        if account:
            os.chown(place, account.uid, account.gid)
        python = python_for(account) if account else sys.executable
        with supervised(place / "home", account=account, python=python, PYTHONPATH=str(folder)) as supervisor:
            assert supervisor.server.uids().real == psutil.Process(supervisor.process.pid).uids().real != 0
            assert supervisor.query("SELECT 1") == [(1,)]
            assert supervisor.terminate() == 0


def test_only_its_owner_reaches_the_socket_and_there_is_no_tcp(tmp_path):
    with supervised(tmp_path / "home") as supervisor:
        socket = supervisor.socket_folder / ".s.PGSQL.5432"
        assert stat.S_IMODE(supervisor.socket_folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(socket.stat().st_mode) == 0o700
        assert supervisor.server.net_connections("inet") == []


def test_an_odd_path_and_an_odd_environment_change_nothing(tmp_path):
    odd = {"PGPORT": "1", "PGDATA": "/nowhere", "PGOPTIONS": "-c nonsense=1", "LC_ALL": "no_LANG", "TMPDIR": "/nowhere"}
    with supervised(tmp_path / "a path, with 'quotes' = and ünicode" / "home", **odd) as supervisor:
        assert supervisor.query("SHOW port") == [("5432",)]


def test_a_long_path_does_not_lengthen_the_sockets(tmp_path):
    with supervised(tmp_path / ("long" * 40) / "home") as supervisor:
        assert len(str(supervisor.socket_folder)) < 60


def test_two_checkouts_run_at_once(tmp_path):
    with supervised(tmp_path / "one") as one, supervised(tmp_path / "two") as two:
        one.query("CREATE TABLE of_one ()")
        assert two.query("SELECT to_regclass('of_one')") == [(None,)]


def test_a_second_run_is_refused_and_told_who_runs(tmp_path):
    with supervised(tmp_path / "home") as first, launched(tmp_path / "home") as second:
        _, message = second.communicate(timeout=15)
        assert second.returncode == 1
        assert f"process {first.process.pid} (the tests' server)" in message
        assert len(message.splitlines()) == 1
        assert first.query("SELECT 1") == [(1,)]


def test_data_are_kept_between_runs(tmp_path):
    with supervised(tmp_path / "home") as supervisor:
        supervisor.query("CREATE TABLE kept AS SELECT 42 AS answer")
        assert supervisor.terminate() == 0
    with supervised(tmp_path / "home") as supervisor:
        assert supervisor.query("SELECT answer FROM kept") == [(42,)]


def test_other_processes_find_it_while_it_runs(tmp_path):
    with supervised(home(tmp_path)) as supervisor:
        assert running_url(tmp_path) == supervisor.url
        supervisor.terminate()
        assert running_url(tmp_path) is None


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


def test_a_restart_keeps_the_address(private_server):
    url = private_server.url
    private_server.restart()
    assert private_server.url == url
    with private_server.connect() as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_crashed_backend_takes_every_session_with_it(private_server):
    with private_server.connect() as bystander:
        private_server.crash_backend()
        with pytest.raises(psycopg.OperationalError):
            bystander.execute("SELECT 1")
    assert private_server.serves()


@needs_root
def test_a_home_of_another_user_is_refused_in_one_line():
    account = Account.named("nobody")
    with open_folder() as folder:
        copy_of_the_code(folder)
        options = {"account": account, "python": python_for(account), "PYTHONPATH": str(folder)}
        with launched(folder / "var" / "postgres", **options) as process:
            _, message = process.communicate(timeout=15)
    assert process.returncode == 1
    assert "belongs to another user" in message
    assert len(message.splitlines()) == 1
