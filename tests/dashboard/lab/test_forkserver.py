"""The processes of a run: the output of one that fails is kept, and all end with the forkserver."""

from contextlib import closing

import psutil
import pytest
from django.db import connection

from dashboard.lab.forkserver import Forkserver, RunProcess
from dashboard.lab.runner import DATABASE
from dashboard.lab.worker import Plan
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(scope="module")
def server():
    with closing(Forkserver()) as opened:
        yield opened


def at_the_line(server: Forkserver) -> RunProcess:
    """A process that is connected and waits for its start."""
    database = {key: connection.settings_dict[key] for key in DATABASE}
    job = {"database": database, "schema": "lab_none", "number": 0, "role": "worker", "limits": ""}
    process = server.start({**job, "plan": Plan("unsafe").as_dict()})
    process.wait_until_ready()
    return process


def test_the_output_of_a_failed_process_is_kept(server):
    process = server.start({})
    process.wait(60)
    assert process.has_failed
    assert process.error == "KeyError: 'schema'"
    process.close()


def test_one_is_killed_and_the_others_stay(server):
    processes = [at_the_line(server) for _ in range(2)]
    processes[0].kill()
    assert [process.has_failed for process in processes] == [True, False]
    processes[0].send("go")  # it has ended, which is no error
    processes[0].close()
    processes[1].close()
    assert processes[1].has_failed


def test_all_end_with_the_forkserver_and_the_next_run_gets_another(server):
    process = at_the_line(server)
    child = psutil.Process(process.pid)
    child.parent().kill()
    wait_until(lambda: process.poll(), seconds=30)
    wait_until(lambda: not child.is_running(), seconds=30)
    process.close()
    another = at_the_line(server)
    assert not another.poll()
    another.close()
