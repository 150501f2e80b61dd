"""One of a supervisor's idle workers leads: it waits for tasks. It is replaced when it works, dies or freezes."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tasks.worker import leader
from tasks.worker.leader import LeaderToken
from tasks.worker.shared_state import SharedState
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

# Workers that are on duty, or whose last statement asked for it: the leaders.
LEADERS = """
SELECT worker.pid FROM pg_stat_activity AS session
JOIN tasks_worker AS worker ON session.application_name = 'rowlock:worker:' || worker.id
WHERE (session.query LIKE '%%rowlock:duty%%' OR EXISTS (
    SELECT FROM pg_locks WHERE pid = session.pid AND locktype = 'advisory' AND mode = 'ExclusiveLock'
      AND classid::bigint = (hashtext('rowlock:duty')::bigint & 4294967295)))
"""
SLEEPERS = 5
IN_EPOLL = ("do_epoll_wait", "ep_poll")  # as kernels call it


class TestToken:
    def test_one_has_it_until_it_is_passed_on(self):
        token, first, second = LeaderToken(), SharedState(), SharedState()
        assert token.take(first)
        assert token.take(first)
        assert not token.take(second)
        token.pass_on(second)
        assert not token.take(second), "it was not the one to pass it on"
        token.pass_on(first)
        assert token.take(second)
        assert [state.is_leader for state in (first, second)] == [0, 1]

    def test_there_is_one_again_after_two(self):
        token, first, second = LeaderToken(), SharedState(), SharedState()
        first.is_leader = 1  # died before it was read
        token.pass_on(first)
        assert token.take(first)
        token.pass_on(first)
        token.pass_on(first)
        assert token.take(second)
        assert not token.take(first)

    def test_of_those_that_sleep_one_is_woken_by_the_token_and_two_by_a_call(self, monkeypatch):
        monkeypatch.setattr(LeaderToken, "is_leader_silent", False)  # else all look after five seconds
        token, holder = LeaderToken(), SharedState()
        assert token.take(holder)
        ends, woken = [os.pipe() for _ in range(SLEEPERS)], []

        def sleep(end: int) -> None:
            woken.append(token.sleep(SharedState(), 60, [end]))

        with ThreadPoolExecutor(SLEEPERS) as pool:
            for read, _ in ends:
                pool.submit(sleep, read)
            try:
                wait_until(lambda: asleep() == SLEEPERS)
                token.pass_on(holder)
                wait_until(lambda: len(woken) == 1 and asleep() == SLEEPERS - 1)
                token.call()
                wait_until(lambda: asleep() == SLEEPERS - 3)
            finally:
                for _, write in ends:
                    os.write(write, b"x")
        assert sorted(woken) == [False, False, True, True, True]
        for end in (end for pair in ends for end in pair):
            os.close(end)

    def test_who_sleeps_looks_only_once_the_leader_is_silent(self, monkeypatch):
        """Else a hundred idle workers would ask the database as often as a hundred leaders."""
        monkeypatch.setattr(leader, "SILENT_SECONDS", 0.01)
        token = LeaderToken()
        assert token.take(SharedState())
        monkeypatch.setattr(LeaderToken, "is_leader_silent", False)
        began = time.monotonic()
        assert not token.sleep(SharedState(), 0.1, [])
        assert time.monotonic() - began >= 0.1
        monkeypatch.undo()
        token.note_look()
        assert not token.is_leader_silent
        monkeypatch.setattr(leader, "SILENT_SECONDS", 0.01)
        began = time.monotonic()
        assert not token.sleep(SharedState(), 60, [])
        token.note_look()
        monkeypatch.setattr(LeaderToken, "is_leader_silent", False)
        assert not token.sleep(SharedState(), 60, [], is_due=lambda: True)
        assert time.monotonic() - began < 60


def asleep() -> int:
    """How many threads of this process wait in epoll."""
    return sum(
        Path(f"/proc/self/task/{thread}/wchan").read_text() in IN_EPOLL for thread in os.listdir("/proc/self/task")
    )


def the_leader(database) -> int:
    """The process of the leader, once it is one of two that live."""

    def found():
        pids = database.rows(LEADERS)
        return pids if len(pids) == 1 and database.value("SELECT count(*) FROM tasks_worker") == 2 else None

    [[pid]] = wait_until(found)
    return pid


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_another_takes_the_place_of_one_that_is(number, database, ledger, start_worker):
    start_worker("--concurrency", "2", ROWLOCK_LEASE_SECONDS=60)
    pid = the_leader(database)
    others = f"{LEADERS} AND worker.pid <> {pid}"
    os.kill(pid, number)
    try:
        wait_until(lambda: database.rows(others))
        [task_id] = database.enqueue(handlers.work)
        assert database.wait_for(task_id, "COMPLETED").attempt == 1
    finally:
        if number == signal.SIGSTOP:
            os.kill(pid, signal.SIGCONT)
