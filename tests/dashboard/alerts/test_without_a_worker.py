"""With no worker alive the web process sends alerts; each once under kill -9, and no secret is stored or logged."""

import contextlib
import os
import signal
import time
from collections import Counter

import pytest

from dashboard.alerts import secrets
from tests.dashboard.alerts.receiver import Receiver, receiving
from tests.databases import QueueDatabase
from tests.waiting import wait_until
from tests.web import gunicorn

PASSWORD = "s3cr3tpa55"


@pytest.fixture
def receiver(monkeypatch, database: QueueDatabase):
    monkeypatch.setenv("ROWLOCK_ALERT_PRIVATE", "1")
    with receiving() as receiver:
        address = secrets.seal(f"http://127.0.0.1:{receiver.port}/{PASSWORD}")
        database.connection.execute(
            "INSERT INTO dashboard_alertchannel (name, sealed_address) VALUES ('ops', %s)", [address]
        )
        yield receiver


def told(receiver: Receiver) -> Counter[tuple[str, str]]:
    """How often each state of each kind came, the same id counted once."""
    return Counter((body["kind"], body["state"]) for body in {body["id"]: body for body in receiver.bodies}.values())


def test_the_web_process_sends_each_alert_once_though_it_is_killed(database: QueueDatabase, receiver, capfd):
    database.enqueue("app.of_nobody")
    began = time.monotonic()
    with gunicorn(database.url) as (process, _port):
        wait_until(lambda: receiver.posts, seconds=60)
        assert time.monotonic() - began < 40  # 10 s on an idle machine, its start included
        for child in process.children():
            child.send_signal(signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    with gunicorn(database.url):
        database.connection.execute("DELETE FROM tasks_task WHERE queue_name = 'default'")
        wait_until(lambda: ("no-worker", "resolved") in told(receiver), seconds=90)
    assert told(receiver) == {("no-worker", "opened"): 1, ("no-worker", "resolved"): 1}
    logged = capfd.readouterr()
    assert PASSWORD not in logged.out + logged.err
    everything = dump(database)
    assert "no-worker" in everything
    assert PASSWORD not in everything


def dump(database: QueueDatabase) -> str:
    """The rows of every table, as text."""
    tables = database.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    return "".join(str(database.rows(f'SELECT row::text FROM "{table.tablename}" AS row')) for table in tables)
