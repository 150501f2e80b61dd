"""A worker keeps the session of a lock that it has let go, for its next one: to connect takes longer than all else."""

import os
import subprocess
import sys

import pytest
from django.db import connection

from tasks.exceptions import LockLost
from tasks.locking import lock
from tasks.locking.named.postgres import spare
from tests.sessions import session
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

OURS = """
SELECT pid, application_name, (SELECT count(*) FROM pg_locks WHERE pg_locks.pid = activity.pid) AS locks
FROM pg_stat_activity AS activity
WHERE datname = current_database() AND application_name LIKE 'rowlock:lock%' ORDER BY backend_start
"""
BACKENDS = ["lease", "advisory"]
WITHOUT_SETTINGS = """
from django.core.exceptions import ImproperlyConfigured
try:
    import tasks.locking
except ImproperlyConfigured as error:
    print(error)
"""


@pytest.fixture(autouse=True)
def in_a_worker(monkeypatch):
    """This process is called what a worker's is, and keeps nothing at the end."""
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "application_name", "rowlock:worker:me")
    yield
    spare.close()


def taken(name="job", backend="lease"):
    return lock(name, ttl=30, backend=backend)


@pytest.fixture
def sessions():
    """What sessions of locks there are: pid, name and number of locks of each."""
    with session(autocommit=True) as observer:
        yield lambda: observer.execute(OURS).fetchall()


def setting_of(held):
    return held._contender.connection.execute("SHOW idle_session_timeout").fetchone()[0]


@pytest.mark.parametrize("second", BACKENDS)
@pytest.mark.parametrize("first", BACKENDS)
def test_the_next_lock_is_taken_by_the_same_session_under_its_own_name(sessions, first, second):
    with taken("one", first):
        [before] = [row for row in sessions() if row[1].startswith("rowlock:lock:one")]
    assert (before[0], "rowlock:lock", 0) in sessions(), "named for nobody, it holds nothing"
    with taken("two", second):
        [after] = [row for row in sessions() if row[1].startswith("rowlock:lock:two")]
    assert after[0] == before[0]


def test_it_is_kept_for_some_seconds_only_and_used_for_as_long_as_need_be():
    with taken() as first:
        kept = first._contender.connection
        assert setting_of(first) == "0"
    assert kept.execute("SHOW idle_session_timeout").fetchone() == ("10s",)
    with taken() as second:
        assert (second._contender.connection, setting_of(second)) == (kept, "0")


def test_one_that_the_server_has_ended_is_not_missed(sessions):
    with taken() as first:
        pid = first._contender.connection.info.backend_pid
    with session(autocommit=True) as operator:
        operator.execute("SELECT pg_terminate_backend(%s)", [pid])
    wait_until(lambda: pid not in [row[0] for row in sessions()])
    with taken() as again:
        assert again._contender.connection.info.backend_pid != pid


def test_of_two_that_were_held_at_once_one_is_kept(sessions):
    with taken("one"), taken("two"):
        assert len({row[0] for row in sessions() if ":one" in row[1] or ":two" in row[1]}) == 2
    wait_until(lambda: len(sessions()) == 1)


def test_a_lock_that_was_lost_leaves_no_session_behind(sessions):
    held = taken().acquire()
    with session(autocommit=True) as operator:
        operator.execute("SELECT rowlock_lock_release('job', owner, fence) FROM tasks_lock WHERE name = 'job'")
    with pytest.raises(LockLost):
        held.release()
    wait_until(lambda: sessions() == [])


def test_a_program_of_its_own_keeps_none(sessions, monkeypatch):
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "application_name", "report.py")
    with taken():
        assert len(sessions()) == 1
    wait_until(lambda: sessions() == [])


def test_a_fork_connects_by_itself(sessions):
    with taken() as first:
        kept = first._contender.connection.info.backend_pid
    child = os.fork()
    if child == 0:
        with taken("of the child") as held:
            os._exit(int(held._contender.connection.info.backend_pid == kept))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with taken() as again:
        assert again._contender.connection.info.backend_pid == kept


def test_a_process_that_has_no_settings_and_kept_nothing_ends_in_silence():
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    done = subprocess.run([sys.executable, "-c", WITHOUT_SETTINGS], env=environment, capture_output=True, text=True)
    assert ("settings are not configured" in done.stdout, done.stderr) == (True, "")
