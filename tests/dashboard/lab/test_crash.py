"""A runner that is killed with SIGKILL: its processes end, and its schema goes although nobody runs anything again."""

import os
import signal

import psutil
import pytest

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
    thread = SamplingThread(every_seconds=0.05, ask_again_seconds=0.05)
    thread.start()
    try:
        wait_until(lambda: fetched(SCHEMAS) == [(0,)], seconds=60)
        wait_until(lambda: not any(child.is_running() for child in children), seconds=30)
        wait_until(lambda: fetched(SESSIONS) == [(0,)], seconds=30)
    finally:
        thread.stop()
        thread.join(20)
