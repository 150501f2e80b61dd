"""`manage.py up` from an empty folder to a browser's login, with its demo, over its ends and next starts.

One folder lives through all of it, as an operator's does: a start costs more than what is looked at in it. What a
visitor of the demo sees and does is in tests/browser/test_demo.py.
"""

import signal
import subprocess
from contextlib import closing

import psycopg
import pytest

from dashboard import embedded
from tests.dashboard import sites
from tests.waiting import wait_until

WAITING = """
SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'rowlock:demo:%%' AND wait_event_type = 'Lock'
"""
OURS = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'rowlock:demo:%%'"
END_ROOT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'rowlock:demo:forgotten-psql'
"""
ASK_FOR_THE_CHAIN = """
SELECT pg_notify('rowlock_demo_public', '{"do": "chain", "actor": "anna", "source": "page"}')
"""
LOADED = """
SELECT (SELECT count(*) FROM tasks_task WHERE task_path = 'dashboard.tasks.charge_card'),
    (SELECT count(*) FROM orders_order), (SELECT count(*) FROM tasks_expectedcommand)
"""
WORKERS = "SELECT pid FROM tasks_worker WHERE stopped_at IS NULL"
PASSWORD = r"(?<=Log in as admin / )\S+"


class Stage:
    """A running site with its demo, and its database."""

    def __init__(self, site):
        self.site = site
        self.connection = psycopg.connect(site.checkout.url, autocommit=True, application_name="rowlock:test")

    def rows(self, statement):
        return self.connection.execute(statement).fetchall()

    def value(self, statement):
        return self.rows(statement)[0][0]

    def demo(self, *arguments):
        return self.site.checkout.manage("demo", *arguments)

    def wait_for_the_chain(self):
        wait_until(lambda: self.value(WAITING) == 3, seconds=30)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    return sites.new_checkout(tmp_path_factory.mktemp("demo") / "a check out")


@pytest.fixture(scope="module")
def stage(checkout):
    """The first start, from nothing."""
    with sites.running(checkout) as site:
        stage = Stage(site)
        yield stage
        stage.connection.close()


@pytest.fixture(scope="module")
def password(stage):
    return stage.site.says(PASSWORD)


@pytest.fixture(scope="module")
def second(checkout, stage, password):
    """The second start, after the first has ended in order."""
    stage.connection.close()
    assert stage.site.end(signal.SIGTERM) == 0
    assert embedded.pid_file(checkout.home / "data") == []
    with sites.running(checkout) as again:
        yield again


@pytest.fixture(scope="module")
def third(checkout, second):
    """The third start, at the same port as the second one, which was killed with all that it had started."""
    assert len(second.processes()) > 8
    assert second.end(signal.SIGKILL) == -signal.SIGKILL
    with sites.running(checkout, "--no-demo", port=second.port) as site:
        yield site


def frozen_worker(site):
    """Stops the worker (SIGSTOP), which makes it deaf to SIGTERM once it has a handler of its own for that signal."""
    worker = site.child("run_worker")

    def has_registered() -> bool:
        registered = {pid for (pid,) in site.checkout.rows(WORKERS)}
        return any(child.pid in registered for child in worker.children())

    wait_until(has_registered)
    worker.suspend()
    return worker


def test_the_first_start_serves_and_works(stage, password):
    assert stage.site.answers()
    assert stage.site.logs_in(password)
    wait_until(lambda: stage.site.checkout.completed() > 20, seconds=60)
    assert "Warning" not in stage.site.output
    assert stage.rows(LOADED) == [(14, 13, 1)]


def test_the_chain_dissolves_when_its_root_is_terminated_and_stands_again_on_demand(stage):
    stage.wait_for_the_chain()
    assert stage.rows(END_ROOT) == [(True,)]
    wait_until(lambda: stage.value(WAITING) == 0)
    stage.rows(ASK_FOR_THE_CHAIN)
    stage.wait_for_the_chain()


def test_a_second_director_leaves_at_once(stage):
    second = stage.site.checkout.manage("direct_demo")
    assert (second.returncode, second.stdout) == (0, "The demo of this database has a director already.\n")


def test_the_address_and_the_login_stay_readable(stage):
    _, after = stage.site.output.split("Ctrl-C stops all of it")
    assert "Traceback" not in after
    assert len(after.splitlines()) < 20


def test_stopped_it_leaves_no_session_and_no_process_and_is_not_started_again(stage):
    assert stage.demo("--stop").returncode == 0
    wait_until(lambda: stage.value(OURS) == 0)
    wait_until(lambda: not stage.site.children("direct_demo"))
    assert not [one for one in stage.site.processes() if "demo-parcels" in sites.command_line(one)]


def test_a_second_start_keeps_the_password_and_doubles_nothing(second, password):
    assert "its password was shown at the first start" in second.output
    assert second.logs_in(password)
    again = Stage(second)
    with closing(again.connection):
        again.wait_for_the_chain()
        assert again.rows(LOADED) == [(14, 13, 1)]


def test_a_kill_leaves_nothing_and_the_next_start_recovers(third):
    assert third.answers()
    assert third.checkout.rows(LOADED) == [(14, 13, 1)]


def test_a_start_waits_for_one_that_is_stopping_and_two_signals_end_it_at_once(checkout, third):
    worker = frozen_worker(third)
    third.process.terminate()
    third.says("SIGTERM: stopping")
    with sites.launched(checkout, "--no-demo") as following:
        with pytest.raises(subprocess.TimeoutExpired):
            following.process.wait(1)
        worker.resume()
        following.says("Rowlock runs at")
        assert third.process.wait(20) == 0
        two_signals_end_it_at_once(following)


def two_signals_end_it_at_once(site):
    frozen_worker(site)
    everything = site.processes()
    site.process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        site.process.wait(1)  # longer than one signal that comes twice
    site.process.send_signal(signal.SIGTERM)
    assert site.process.wait(10) == 128 + signal.SIGTERM
    assert all(sites.ends_within(one, 10) for one in everything)
