"""A runner that a person or SIGKILL ends: its processes end, and its schema goes without another run."""

import json
import os
import signal

import psutil
import pytest

from dashboard.lab import schema
from dashboard.locks.history import SamplingThread
from tests import commands
from tests.dashboard.lab.live import SCHEMAS, fetched
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'rowlock:lab:%'"


def test_what_a_killed_runner_leaves_is_swept_by_the_web_server():
    argv = ["optimistic_complete", "--workers", 1, "--items", 50, "--work-ms", 1000, "-v0"]
    with commands.start("run_pattern", *argv, env={"ROWLOCK_LAB": "1"}) as runner:
        try:
            wait_until(lambda: fetched(SESSIONS)[0][0] >= 2, seconds=60)
            children = psutil.Process(runner.pid).children(recursive=True)
        finally:
            os.kill(runner.pid, signal.SIGKILL)
    assert fetched(SCHEMAS) == [(1,)]
    assert children
    thread = SamplingThread(schema.sweep, every_seconds=0.05, ask_again_seconds=0.05)
    thread.start()
    try:
        wait_until(lambda: fetched(SCHEMAS) == [(0,)], seconds=60)
        wait_until(lambda: not any(child.is_running() for child in children), seconds=30)
        wait_until(lambda: fetched(SESSIONS) == [(0,)], seconds=30)
    finally:
        thread.stop()
        thread.join(20)


def test_ctrl_c_ends_a_run_in_order():
    """A terminal sends it to every process of the group."""
    argv = ["optimistic_complete", "--workers", 2, "--items", 50, "--work-ms", 1000, "--json"]
    with commands.start("run_pattern", *argv, env={"ROWLOCK_LAB": "1"}, process_group=0) as runner:
        try:
            wait_until(lambda: fetched(SESSIONS)[0][0] >= 5, seconds=60)
            os.killpg(runner.pid, signal.SIGINT)
            out, err = runner.communicate(timeout=60)
        finally:
            runner.kill()
    assert runner.returncode == 130
    assert json.loads(out)["stopped"] == "stopped by a person"
    assert "Traceback" not in err
    assert fetched(SCHEMAS) == [(0,)]
