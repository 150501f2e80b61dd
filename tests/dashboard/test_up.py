"""`manage.py up` from an empty folder to a browser's login, and back to nothing."""

import os
import signal
import socket
import subprocess
import sys

import psutil
import psycopg
import pytest

from dashboard.embedded import ownership
from tests import databases
from tests.dashboard import sites
from tests.waiting import wait_until

PASSWORD = r"(?<=Log in as admin / )\S+"


@pytest.fixture
def checkout(tmp_path):
    return sites.new_checkout(tmp_path / "a check out")


def frozen_worker(site):
    """Stops the worker (SIGSTOP), which makes it deaf to SIGTERM once it has a handler of its own for that signal."""
    wait_until(lambda: site.checkout.status()["workers"], every=0.3)
    worker = site.child("run_worker")
    worker.suspend()
    return worker


def test_the_first_start_serves_works_and_ends_in_order(checkout):
    with sites.running(checkout) as site:
        password = site.says(PASSWORD)
        assert site.answers()
        assert site.logs_in(password)
        wait_until(lambda: checkout.completed() > 30, seconds=40, every=0.5)
        assert "Warning" not in site.output
        assert site.end(signal.SIGTERM) == 0
    assert not checkout.home.joinpath(ownership.RECORD).exists()

    with sites.running(checkout) as again:
        assert "its password was shown at the first start" in again.output
        assert again.logs_in(password)
        assert again.end(signal.SIGINT) == 0


def test_a_kill_leaves_nothing_and_the_next_start_recovers(checkout):
    with sites.running(checkout) as killed:
        assert len(killed.processes()) > 8
        assert killed.end(signal.SIGKILL) == -signal.SIGKILL
    with sites.running(checkout, port=killed.port) as site:
        assert site.answers()


def test_a_start_waits_for_one_that_is_stopping(checkout):
    with sites.running(checkout, "--no-demo") as stopping:
        worker = frozen_worker(stopping)
        stopping.process.terminate()
        stopping.says("SIGTERM: stopping")
        with sites.launched(checkout, "--no-demo") as following:
            with pytest.raises(subprocess.TimeoutExpired):
                following.process.wait(1)
            worker.resume()
            following.says("Rowlock runs at")


def test_two_signals_end_it_at_once(checkout):
    with sites.running(checkout, "--no-demo") as site:
        frozen_worker(site)
        everything = site.processes()
        site.process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            site.process.wait(1)  # longer than one signal that comes twice
        site.process.send_signal(signal.SIGTERM)
        assert site.process.wait(10) == 128 + signal.SIGTERM
        assert all(sites.ends_within(one, 10) for one in everything)


def test_a_given_password_is_taken_and_not_printed(checkout):
    with sites.running(checkout, "--workers", "0", "--no-demo", ADMIN_PASSWORD="given to us") as site:
        assert site.logs_in("given to us")
        assert "given to us" not in site.output
        assert checkout.status()["workers"] == []


def test_a_taken_port_is_refused_before_anything_starts(checkout):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with sites.launched(checkout, port=port) as site:
            assert site.process.wait(20) == 1
    assert site.output.count("\n") == 1
    assert f"Port {port} is taken by process {os.getpid()}" in site.output
    assert "--port" in site.output
    assert not (checkout.home / "data").exists()


def test_what_runs_on_the_readers_side_of_a_closed_pipe_stops(checkout):
    argv = [sys.executable, "manage.py", "up", "--port", str(sites.free_port())]
    with sites.killed_at_the_end(argv, cwd=checkout.folder, env=checkout.environment(), stdout=subprocess.PIPE) as up:
        up.stdout.readline()
        everything = {psutil.Process(up.pid), *psutil.Process(up.pid).children(recursive=True)}
        up.stdout.close()
        assert up.wait(30) == 0
        assert all(sites.ends_within(one, 10) for one in everything)


def test_with_a_database_of_its_own_nothing_is_embedded_and_no_demo_loaded(checkout):
    url = databases.named(os.environ["DATABASE_URL"], "of_test_up")
    databases.create(url)
    try:
        with sites.running(checkout, DATABASE_URL=url) as site:
            assert "postgres |" not in site.output
            with psycopg.connect(url) as connection:
                assert connection.execute("SELECT count(*) FROM tasks_task").fetchone() == (0,)
            assert site.end() == 0
    finally:
        databases.drop(url)
    assert not checkout.home.exists()


@pytest.mark.parametrize("arguments", [["check"], ["makemigrations", "--check"], ["migrate", "--help"], ["--version"]])
def test_commands_that_need_no_database_work_without_one(checkout, arguments):
    done = checkout.manage(*arguments)
    assert done.returncode == 0
    assert done.stderr.replace("System check identified no issues (0 silenced).\n", "") == ""


@pytest.mark.parametrize("arguments", [["queue_status"], ["migrate"], ["run_worker"], ["shell", "-c", "1"]])
def test_every_other_command_says_in_one_line_that_there_is_none(checkout, arguments):
    done = checkout.manage(*arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "make run" in done.stderr


def test_so_does_the_web_server(checkout):
    done = checkout.run(sys.executable, "-m", "gunicorn", PORT=str(sites.free_port()))
    assert done.returncode == 1
    assert "make run" in done.stderr.splitlines()[-1]
