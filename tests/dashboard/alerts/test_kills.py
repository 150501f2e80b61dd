"""A worker that is killed while it sends: the receiver may get the message again, with the same id."""

import os
import signal
import threading

import psutil
import pytest

from tests import outages
from tests.dashboard.alerts.receiver import PASSWORD, Receiver
from tests.databases import QueueDatabase
from tests.waiting import wait_until

# Over already, so that nobody who watches meanwhile has anything to tell of it.
INCIDENT = """
INSERT INTO dashboard_incident (line, kind, severity, title, size, resolved_at)
VALUES ('drill:mail', 'drill', 1, 'A drill', 2, statement_timestamp()) RETURNING id
"""
OF_ITS_KIND = "UPDATE dashboard_alertchannel SET kinds = '{drill}'"
PID = "SELECT pid FROM tasks_worker WHERE stopped_at IS NULL"


@pytest.fixture
def task_id(database: QueueDatabase, channel: Receiver) -> int:
    """The task that sends one message to the channel."""
    database.connection.execute(OF_ITS_KIND)
    incident = database.value(INCIDENT)
    [task_id] = database.enqueue("dashboard.tasks.send_alert", incident, "opened", "ops", 2)
    return task_id


def test_a_message_is_sent_again_with_its_id_after_a_kill_and_once_after_an_outage(
    database: QueueDatabase, channel: Receiver, start_worker, task_id: int
):
    """The receiver has taken the message and not answered when the worker dies, then when every session ends."""
    channel.answers = threading.Event()
    start_worker()
    wait_until(lambda: len(channel.posts) == 1)
    os.kill(database.value(PID), signal.SIGKILL)
    wait_until(lambda: len(channel.posts) == 2)
    assert PASSWORD not in str([process.info for process in psutil.process_iter(["cmdline"])])
    assert PASSWORD not in str(database.rows("SELECT query FROM pg_stat_activity"))
    outages.terminate_every_backend(None, database)
    channel.answers.set()
    assert database.wait_for(task_id, "COMPLETED").attempt == 2
    first, second = channel.bodies
    assert first == second
    assert database.outcomes(task_id) == ["abandoned"]
