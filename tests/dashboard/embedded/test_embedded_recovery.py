"""What a killed supervisor leaves behind, and what the next start makes of it."""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import psycopg
import pytest

from dashboard import embedded, processes
from dashboard.embedded import cluster, home, running_url, server
from dashboard.processes import bound
from tests.dashboard.servers import killed_at_the_end, launched, supervised
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    """What lies in its home each test starts anew, whatever the one before has left there."""
    return tmp_path_factory.mktemp("base")


def test_the_server_ends_with_its_killed_supervisor_and_the_next_start_recovers(base):
    with supervised(home(base)) as killed:
        killed.query("CREATE TABLE kept AS SELECT 42 AS answer")
        backends = killed.server.children(recursive=True)
        pid_file = home(base) / "data" / "postmaster.pid"
        told = pid_file.read_text()
        assert running_url(base) == killed.url
        assert killed.kill() == -signal.SIGKILL
        assert all(server.ends_within(backend, 10) for backend in backends)
        # A dead server's pid file is no answer.
        pid_file.write_text(told)
        assert embedded.pid_file(home(base) / "data")[4] == str(killed.socket_folder)
        assert running_url(base) is None
    with supervised(home(base)) as supervisor:
        assert supervisor.query("SELECT answer FROM kept") == [(42,)]
        assert not killed.socket_folder.exists()


def test_an_orderly_end_leaves_only_the_home(base):
    with supervised(home(base)) as supervisor:
        backends = supervisor.server.children(recursive=True)
        assert supervisor.terminate() == 0
        assert not any(map(psutil.Process.is_running, backends))
    assert not supervisor.socket_folder.parent.exists()
    assert {path.name for path in home(base).iterdir()} == {"data", "lock", "server.log"}


def test_a_start_waits_for_the_server_of_a_killed_supervisor(base):
    with supervised(home(base)) as killed, psycopg.connect(killed.url) as connection:
        backend = psutil.Process(connection.info.backend_pid)
        backend.suspend()  # so that the server cannot end
        killed.process.kill()
        with launched(home(base)) as following:
            with pytest.raises(subprocess.TimeoutExpired):
                following.wait(1)
            assert killed.server.is_running()
            backend.resume()
            assert following.stdout.readline().strip().isdigit()


def test_a_pid_file_whose_number_belongs_to_another_process_now_is_dropped(base):
    data = home(base) / "data"
    with supervised(home(base)) as supervisor:
        supervisor.query("CREATE TABLE kept_too AS SELECT 42 AS answer")
        stale = (data / "postmaster.pid").read_text()
    sleep = bound(["/bin/sleep", "60"], account=cluster.owner_account(data))
    with killed_at_the_end(sleep) as stranger:
        wait_until(lambda: psutil.Process(stranger.pid).name() == "sleep")
        (data / "postmaster.pid").write_text(stale.replace(str(supervisor.server.pid), str(stranger.pid), 1))
        with supervised(home(base)) as supervisor:
            assert supervisor.query("SELECT answer FROM kept_too") == [(42,)]
        assert stranger.poll() is None


def test_a_start_that_was_killed_while_it_made_the_data_is_made_again(tmp_path):
    with launched(tmp_path / "home") as killed:
        wait_until((tmp_path / "home" / "data.new" / "base").exists)
        killed.kill()
    assert not (tmp_path / "home" / "data").exists()
    with supervised(tmp_path / "home") as supervisor:
        assert supervisor.query("SELECT 1") == [(1,)]


def test_a_server_deaf_to_its_shutdown_is_stopped_with_more_force():
    deaf = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGQUIT, signal.SIG_DFL); "
        "print(flush=True); signal.pause()"
    )  # a shell starts what runs in its background deaf to both
    with killed_at_the_end([sys.executable, "-c", deaf], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        server.stop(psutil.Process(process.pid), steps=[(signal.SIGINT, 0.1), (signal.SIGQUIT, 10)])
        assert process.wait(20) == -signal.SIGQUIT


def test_the_sweep_removes_only_what_runs_have_left():
    with cluster.folder() as alive, tempfile.TemporaryDirectory(prefix=cluster.PREFIX, dir="/tmp") as foreign:
        left = Path(tempfile.mkdtemp(prefix=cluster.PREFIX, dir="/tmp"))
        (left / cluster.MARK).touch()
        cluster.sweep()
        assert alive.exists()
        assert Path(foreign).exists()
        assert not left.exists()


def test_a_program_does_not_start_once_its_parent_is_gone():
    no_parent_of_ours = "999999999"
    argv = [sys.executable, processes.__file__, no_parent_of_ours, "15", "", "/bin/echo", "started"]
    late = subprocess.run(argv, capture_output=True, text=True)
    assert late.returncode == 1
    assert late.stdout == ""
