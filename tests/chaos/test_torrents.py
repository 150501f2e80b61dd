"""Tasks of microseconds by the hundred thousand: batches are claimed ahead and written on a second session meanwhile.

The other drills have tasks of milliseconds, which are claimed few at a time.
"""

import contextlib
import os
import random
import signal
import time
from collections import Counter

import psutil
import pytest

from tests.chaos.runs import fresh_seed
from tests.outages import terminate_every_backend
from tests.tasks.worker_app import tasks as handlers
from tests.waiting import wait_until

STRIKES = ("kill a child", "kill a child", "kill a group", "freeze a child", "end the sessions")
FROZEN_SECONDS = 0.5
ENDED = "SELECT coalesce(sum(completed), 0)::int FROM tasks_throughput"
PRESENT = """
SELECT EXISTS (
    SELECT FROM tasks_worker AS worker
    JOIN pg_stat_activity AS session ON session.application_name = 'rowlock:worker:' || worker.id
    JOIN pg_locks AS held ON held.pid = session.pid AND held.locktype = 'advisory' AND held.mode = 'ExclusiveLock'
    WHERE worker.pid = %s AND held.granted)
"""
SPENT = "SELECT sum(attempt - 1)::int FROM tasks_task"


class Torrent:
    """Workers on a queue of `tasks` tasks, struck at random moments while they drain it."""

    def __init__(self, database, start, seed, tasks):
        self.database = database
        self.start = start
        self.chance = random.Random(seed)
        self.tasks = tasks
        self.workers = [start(), start()]

    def strike(self):
        worker = self.chance.choice(self.workers)
        kind = self.chance.choice(STRIKES)
        if kind == "end the sessions":
            terminate_every_backend(None, self.database)
        elif kind == "kill a group":
            worker.send_all(signal.SIGKILL)
            self.workers.remove(worker)
            self.workers.append(self.start())
        else:
            for child in worker.children():
                with contextlib.suppress(ProcessLookupError):
                    self.strike_child(child, kind)

    def strike_child(self, child, kind):
        if kind == "kill a child":
            os.kill(child, signal.SIGKILL)
            return
        # Frozen before it is back from a session that was ended, it would rightly be taken for dead.
        wait_until(lambda: self.database.value(PRESENT, child) or not psutil.pid_exists(child))
        os.kill(child, signal.SIGSTOP)
        time.sleep(FROZEN_SECONDS)
        os.kill(child, signal.SIGCONT)

    def run(self, strikes):
        """Strike whenever a random share of the tasks has ended."""
        for share in sorted(self.chance.uniform(0.02, 0.95) for _ in range(strikes)):
            wait_until(lambda share=share: self.database.value(ENDED) >= share * self.tasks, seconds=300)
            self.strike()
        return self.database.wait_until_finished(seconds=120)


def assert_none_ran_twice_in_one_attempt(jots, tasks):
    """An attempt that was given back had not begun."""
    lines = jots.read_text().splitlines()
    assert len({line.partition(" ")[0] for line in lines}) == tasks
    assert {line: number for line, number in Counter(lines).items() if number > 1} == {}


def drill(database, start_worker, tmp_path, *, tasks, strikes, seed):
    jots = tmp_path / "jots"
    database.fill(handlers.jot, tasks, max_attempts=1000)
    torrent = Torrent(database, lambda: start_worker(TEST_JOTS=jots), seed, tasks)
    assert torrent.run(strikes) == {"COMPLETED": tasks}
    for worker in torrent.workers:
        assert worker.stop() == 0
    assert_none_ran_twice_in_one_attempt(jots, tasks)
    outcomes = dict(database.rows("SELECT outcome, count(*) FROM tasks_attempt GROUP BY outcome"))
    assert database.value(SPENT) == outcomes.get("abandoned", 0) == sum(outcomes.values())
    assert database.rows("SELECT * FROM tasks_refusedwrite") == []
    print(f"{tasks} tasks, {strikes} strikes: {outcomes}")


def test_a_torrent_loses_nothing_and_runs_nothing_twice_in_one_attempt(database, start_worker, tmp_path):
    drill(database, start_worker, tmp_path, tasks=120_000, strikes=6, seed=11)


@pytest.mark.chaos
def test_a_hundred_strikes_in_a_torrent(database, start_worker, tmp_path):
    drill(database, start_worker, tmp_path, tasks=1_000_000, strikes=100, seed=fresh_seed())
