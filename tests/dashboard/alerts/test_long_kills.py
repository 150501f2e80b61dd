"""The long form of the kills: in the middle of each message somebody dies, and each incident is told once."""

import contextlib
import os
import signal
import threading
from collections import defaultdict
from collections.abc import Iterable
from functools import partial

import pytest

from dashboard import alerts
from tests import outages
from tests.dashboard.alerts.receiver import Receiver
from tests.databases import QueueDatabase
from tests.postgres import PrivateServer
from tests.waiting import wait_until
from tests.web import gunicorn

ROUNDS = 2
OF_ITS_KIND = "UPDATE dashboard_alertchannel SET kinds = '{unserved}'"
WORKERS = "SELECT pid FROM tasks_worker WHERE stopped_at IS NULL"
WATCHER = "SELECT pid FROM tasks_lock WHERE name = %s AND owner IS NOT NULL"
UNSENT = "SELECT count(*) FROM tasks_task WHERE queue_name = %s AND status <> 'COMPLETED'"
END = "DELETE FROM tasks_task WHERE task_path = 'app.of_nobody'"


@pytest.fixture
def database(breakable_database: QueueDatabase) -> QueueDatabase:
    return breakable_database


def strike(pids: Iterable[int], number: signal.Signals = signal.SIGKILL) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # of an earlier strike
            os.kill(pid, number)


def told(channel: Receiver) -> dict[tuple[str, str], set[str]]:
    """The ids of the messages about each queue, by state."""
    ids = defaultdict(set)
    for body in channel.bodies:
        [queue] = [word.strip(".,:") for word in body["title"].split() if word.startswith("drill-")]
        ids[queue, body["state"]].add(body["id"])
    return ids


@pytest.mark.chaos
def test_each_incident_is_told_once_whoever_dies_while_it_is_sent(
    breakable_server: PrivateServer, database: QueueDatabase, channel: Receiver, start_worker
):
    database.connection.execute(OF_ITS_KIND)
    channel.answers = threading.Event()
    start = partial(start_worker, "--queue", alerts.QUEUE, "--queue", "others", ROWLOCK_LEASE_SECONDS=5)
    workers = [start(), start()]

    def kill_a_supervisor() -> None:
        workers.pop(0).send_all(signal.SIGKILL)
        workers.append(start())

    def watchers() -> list[int]:
        return [row.pid for row in database.rows(WATCHER, alerts.QUEUE)]

    with gunicorn(database.url) as (web, _port):
        strikes = [
            lambda: strike([database.rows(WORKERS)[0].pid]),
            kill_a_supervisor,
            lambda: strike(child.pid for child in web.children()),
            lambda: strike(watchers()),
            lambda: strike(watchers(), signal.SIGSTOP),
            partial(outages.terminate_every_backend, breakable_server, database),
            partial(outages.restart, breakable_server, database),
        ]
        queues = [f"drill-{number}" for number in range(ROUNDS * len(strikes))]
        for number, queue in enumerate(queues):
            channel.answers.clear()
            database.enqueue("app.of_nobody", queue=queue)
            wait_until(lambda queue=queue: (queue, "opened") in told(channel), seconds=120)
            strikes[number % len(strikes)]()
            channel.answers.set()
        database.connection.execute(END)
        wait_until(lambda: all((queue, "resolved") in told(channel) for queue in queues), seconds=120)
        wait_until(lambda: not database.value(UNSENT, alerts.QUEUE), seconds=120)
    assert {key: len(ids) for key, ids in told(channel).items()} == {
        (queue, state): 1 for queue in queues for state in ("opened", "resolved")
    }
    twice = len(channel.bodies) - 2 * len(queues)
    assert twice <= len(queues)  # a second copy for each strike at most, with the id of the first
    print(f"{len(queues)} incidents, {len(channel.bodies)} messages received, {twice} of them a second copy")
