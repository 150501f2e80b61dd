"""The processes of a run: the output of one that fails is kept, and all end with the forkserver."""

import psutil
import pytest
from django.db import connection

from dashboard.lab import forkserver
from dashboard.lab.runner import DATABASE
from dashboard.lab.worker import Plan
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(scope="module")
def server():
    with forkserver.open_forkserver() as opened:
        yield opened


def at_the_line(server: forkserver.Forkserver) -> forkserver.RunProcess:
    """A process that is connected and waits for its start."""
    database = {key: connection.settings_dict[key] for key in DATABASE}
    job = {"database": database, "schema": "lab_none", "number": 0, "role": "worker", "limits": ""}
    process = server.start({**job, "plan": Plan("unsafe").as_dict()})
    process.wait_until_ready()
    return process


def test_the_output_of_a_failed_process_is_kept(server):
    process = server.start({})
    assert process.wait(60) == 1
    assert process.last_words() == "KeyError: 'schema'"
    process.close()


def test_one_is_killed_and_the_others_stay(server):
    processes = [at_the_line(server) for _ in range(2)]
    processes[0].kill()
    assert [process.poll() for process in processes] == [-9, None]
    processes[0].send("go")  # it has ended, which is no error
    processes[0].close()
    processes[1].close()
    assert processes[1].poll() == -9


def test_all_end_with_the_forkserver_and_the_next_run_gets_another(server):
    process = at_the_line(server)
    child = psutil.Process(process.pid)
    child.parent().kill()
    wait_until(lambda: process.poll() == -9, seconds=30)
    wait_until(lambda: not child.is_running(), seconds=30)
    process.close()
    another = at_the_line(server)
    assert another.poll() is None
    another.close()
