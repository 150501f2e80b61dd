"""A running `manage.py up`: what dies comes back, who comes second is told, every command finds the server."""

import signal

import pytest

from tests.dashboard import sites
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    checkout = sites.new_checkout(tmp_path_factory.mktemp("site") / "checkout")
    with sites.running(checkout, "--no-demo") as running:
        yield running
        assert running.end() == 0


def test_a_killed_worker_is_started_again_and_that_is_said(site):
    killed = site.child("run_worker")
    killed.kill()
    site.says(r"up +\| worker ended \(killed by SIGKILL\); starting it again in 1 s")
    wait_until(lambda: site.children("run_worker"))
    site.checkout.manage("enqueue_task", "dashboard.tasks.count_primes", "--args", "[10]", "--queue", "demo")
    wait_until(lambda: site.checkout.completed() == 1, seconds=30, every=0.5)


def test_a_killed_web_server_is_started_again(site):
    site.child("gunicorn").kill()
    site.says(r"up +\| web ended \(killed by SIGKILL\)")
    wait_until(site.answers)


def test_a_killed_postgresql_is_started_again_at_the_same_address(site):
    url = sites.embedded.running_url(site.checkout.folder / "var")
    site.child("bin/postgres").send_signal(signal.SIGQUIT)
    site.says(r"up +\| postgres ended")
    wait_until(lambda: sites.embedded.running_url(site.checkout.folder / "var") == url)
    wait_until(lambda: site.checkout.manage("migrate", "--check").returncode == 0)


def test_a_second_run_is_told_who_runs(site):
    second = site.checkout.manage("up", "--port", str(site.port))
    assert second.returncode == 1
    assert f"process {site.process.pid} (manage.py up, {site.url}/)" in second.stderr
    assert second.stderr.count("\n") == 1


def test_every_line_carries_its_programs_name(site):
    unnamed = [line for line in site.output.splitlines() if line.strip() and " | " not in line]
    assert [line.split()[0] for line in unnamed] == ["Rowlock", "Log", "Ctrl-C"]
    assert "\x1b" not in site.output


def test_make_clean_is_refused_while_it_runs(site):
    refused = site.checkout.make("clean")
    assert refused.returncode != 0
    assert f"process {site.process.pid}" in refused.stderr
    assert site.answers()
