"""Whoever watches sends: the web process, and a supervisor of workers after its death; each alert once."""

import contextlib
import os
import signal
import time

from dashboard import alerts
from dashboard.alerts.watching import is_needed
from tests.dashboard.alerts.receiver import PASSWORD, Receiver, told
from tests.databases import QueueDatabase
from tests.waiting import wait_until
from tests.web import gunicorn

HOLDER = "SELECT pid FROM tasks_lock WHERE name = %s AND owner IS NOT NULL AND pid <> ALL(%s)"


def watcher(database: QueueDatabase, *others: int) -> int:
    """The process that watches, once it is none of the others."""

    def pid() -> int:
        return next((row.pid for row in database.rows(HOLDER, alerts.QUEUE, list(others))), 0)

    return wait_until(pid, seconds=60)


def test_the_web_process_and_then_a_supervisor_send_each_alert_once(
    database: QueueDatabase, channel: Receiver, start_worker, capfd
):
    database.enqueue("app.of_nobody")
    began = time.monotonic()
    with gunicorn(database.url) as (process, _port):
        wait_until(lambda: channel.posts, seconds=60)
        assert time.monotonic() - began < 40  # 10 s on an idle machine, its start included
        web = watcher(database)
        assert web in [child.pid for child in process.children()]
        assert not is_needed(database.connection)
        worker = start_worker("--queue", "nobodys")
        for pid in (web, process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    database.connection.execute("DELETE FROM tasks_task WHERE queue_name = 'default'")
    first = watcher(database, web)
    assert first in worker.children()
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: ("no-worker", "resolved") in told(channel), seconds=90)
    second = watcher(database, web, first)
    assert second in worker.children()
    assert {key: number for key, number in told(channel).items() if key[0] == "no-worker"} == {
        ("no-worker", "opened"): 1,
        ("no-worker", "resolved"): 1,
    }
    logged = capfd.readouterr()
    assert PASSWORD not in logged.out + logged.err + worker.log()
    worker.send(signal.SIGKILL)
    wait_until(lambda: second not in worker.members())
