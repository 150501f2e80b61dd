"""What `manage.py up` refuses, what it leaves alone, and commands where no database runs; the rest of its life is in
test_demo_running.py and test_up_running.py.
"""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import psycopg
import pytest

from tests import databases
from tests.dashboard import sites


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """No test here needs what another one has left in it, nor that it left nothing."""
    return sites.new_checkout(tmp_path_factory.mktemp("up") / "a check out")


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


def test_with_a_database_and_a_password_of_ones_own_nothing_is_embedded_loaded_or_printed(tmp_path):
    checkout = sites.new_checkout(tmp_path / "checkout")
    url = databases.named(os.environ["DATABASE_URL"], "of_test_up")
    databases.create(url)
    try:
        with sites.running(checkout, "--workers", "0", DATABASE_URL=url, ADMIN_PASSWORD="given to us") as site:
            assert "postgres |" not in site.output
            assert site.logs_in("given to us")
            assert "given to us" not in site.output
            assert site.children("run_worker") == site.children("bin/postgres") == []
            with psycopg.connect(url) as connection:
                assert connection.execute("SELECT count(*) FROM tasks_task").fetchone() == (0,)
            assert site.end(signal.SIGINT) == 0
    finally:
        databases.drop(url)
    assert not checkout.home.exists()


def ignored_by(process: psutil.Process) -> set[signal.Signals]:
    """Which of a terminal's signals this process ignores; Linux tells."""
    [mask] = re.findall(r"^SigIgn:\t(\w+)$", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
    return {number for number in (signal.SIGINT, signal.SIGQUIT) if int(mask, 16) >> (number - 1) & 1}


def test_started_in_the_background_of_a_shell_it_and_its_programs_hear_ctrl_c(tmp_path, template_url):
    """A shell lets its background jobs ignore SIGINT and SIGQUIT, and whatever they start inherits that."""
    checkout = sites.new_checkout(tmp_path / "checkout")
    port = sites.free_port()
    up = [sys.executable, "manage.py", "up", "--port", str(port), "--no-demo"]
    # As for `command &`, but under a process id that the test knows.
    argv = ["sh", "-c", "trap '' INT QUIT; exec \"$@\"", "sh", *up]
    with (
        databases.copy_of(template_url) as database,
        sites.started(checkout, argv, port, DATABASE_URL=database.url, ADMIN_PASSWORD="given to us") as site,
    ):
        site.says("Rowlock runs at")
        programs = [site.child("run_worker"), site.child("gunicorn")]
        assert [ignored_by(one) for one in (site.up, *programs)] == [set(), set(), set()]
        assert site.end(signal.SIGINT) == 0


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
