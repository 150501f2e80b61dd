"""The demo under a real `manage.py up`: one director, and nothing of it outlives its end.

What a visitor sees and does is in tests/browser/test_demo.py.
"""

import signal

import psycopg
import pytest

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


class Stage:
    """A running site with its demo, and its database."""

    def __init__(self, site):
        self.site = site
        url = sites.embedded.running_url(site.checkout.folder / "var")
        self.connection = psycopg.connect(url, autocommit=True, application_name="rowlock:test")

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
    return sites.new_checkout(tmp_path_factory.mktemp("demo") / "checkout")


@pytest.fixture(scope="module")
def stage(checkout):
    with sites.running(checkout) as site:
        stage = Stage(site)
        yield stage
        stage.connection.close()
        if site.process.poll() is None:
            site.end()


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
    assert not [one for one in stage.site.processes() if "demo-parcels" in one.cmdline()]


def test_a_second_start_doubles_nothing_and_a_kill_leaves_nothing(checkout, stage):
    loaded = stage.rows(LOADED)
    stage.connection.close()
    assert stage.site.end() == 0
    with sites.running(checkout) as again:
        second = Stage(again)
        second.wait_for_the_chain()
        assert second.rows(LOADED) == loaded == [(14, 13, 1)]
        second.connection.close()
        assert again.end(signal.SIGKILL) == -signal.SIGKILL
