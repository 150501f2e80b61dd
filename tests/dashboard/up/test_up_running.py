"""`make run`: what dies comes back, who comes second is told, every command finds the server, it ends with make."""

import json
import signal
import sys

import psycopg
import pytest

from tests.dashboard import sites
from tests.waiting import wait_until

STAMP = ".venv/run.stamp"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A checkout whose environment is the one that runs the tests."""
    checkout = sites.new_checkout(tmp_path_factory.mktemp("site") / "a check out")
    (checkout.folder / ".venv").symlink_to(sys.prefix)
    return checkout


@pytest.fixture(scope="module")
def site(checkout):
    port = sites.free_port()
    # -o: nothing is to be installed into the tests' own environment
    argv = ["make", "-o", STAMP, "run", f"ARGS=--port {port} --no-demo"]
    with sites.started(checkout, argv, port) as running:
        running.says("Rowlock runs at")
        yield running


def accepts_connections(checkout, url) -> bool:
    try:
        return checkout.url == url and checkout.rows("SELECT 1") == [(1,)]
    except psycopg.OperationalError:
        return False


def test_it_serves(site):
    assert site.answers()


def test_a_killed_worker_is_started_again_and_that_is_said(site):
    killed = site.child("run_worker")
    killed.kill()
    site.says(r"up +\| worker ended \(killed by SIGKILL\); starting it again in 1 s")
    wait_until(lambda: site.children("run_worker"))
    site.checkout.manage("enqueue_task", "dashboard.tasks.count_primes", "--args", "[10]", "--queue", "demo")
    wait_until(lambda: site.checkout.completed() == 1)


def test_a_killed_web_server_is_started_again(site):
    site.child("gunicorn").kill()
    site.says(r"up +\| web ended \(killed by SIGKILL\)")
    wait_until(site.answers)


def test_a_killed_postgresql_is_started_again_at_the_same_address(site):
    url = site.checkout.url
    site.child("bin/postgres").send_signal(signal.SIGQUIT)
    site.says(r"up +\| postgres ended")
    wait_until(lambda: accepts_connections(site.checkout, url))
    assert site.checkout.manage("migrate", "--check").returncode == 0


def test_the_status_of_the_queue_is_told_by_a_command(site):
    report = json.loads(site.checkout.manage("queue_status", "--json").stdout)
    assert sum(queue["completed_last_hour"] for queue in report["queues"]) == site.checkout.completed() == 1


def test_a_second_run_is_told_who_runs(site):
    second = site.checkout.manage("up", "--port", str(site.port))
    assert second.returncode == 1
    assert f"process {site.up.pid} (manage.py up, {site.url}/)" in second.stderr
    assert second.stderr.count("\n") == 1


def test_every_line_carries_its_programs_name(site):
    unnamed = [line for line in site.output.splitlines() if line.strip() and " | " not in line]
    assert [line.split()[0] for line in unnamed] == ["Rowlock", "Log", "Ctrl-C"]
    assert "\x1b" not in site.output


def test_make_clean_is_refused_while_it_runs(site):
    refused = site.checkout.make("clean")
    assert refused.returncode != 0
    assert f"process {site.up.pid}" in refused.stderr
    assert site.answers()


def test_it_ends_with_make_however_make_ends_and_clean_removes_what_it_kept(checkout, site):
    assert len(site.processes()) > 6
    assert site.end(signal.SIGKILL) == -signal.SIGKILL
    assert checkout.home.exists()
    assert checkout.make("clean").returncode == 0
    assert not (checkout.folder / "var").exists()
    assert not (checkout.folder / ".venv").exists()
