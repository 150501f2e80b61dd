"""Many schedulers at once, killed in the middle, at changes of the clock and restarts of the server: each tick once."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from datetime import datetime, timedelta

import psycopg
import pytest

from tasks.schedule import ticks
from tasks.support.recurrence import Recurrence
from tests import outages
from tests.databases import QueueDatabase
from tests.shifted import Clock
from tests.tasks import handlers
from tests.tasks.worker_app import tasks as worker_handlers
from tests.waiting import wait_until

PATH = handlers.nothing.module_path
NUMBER = 10
PATIENCE = "-c lock_timeout=250ms"
STEP, KILLED_AFTER_SECONDS = "7 minutes", 0.01
ADD = """
INSERT INTO tasks_schedule (name, task_path, cron, every_seconds, timezone, missed, overlap, next_at)
VALUES (%s, %s, %s, %s, %s, 'all', 'allow', %s)
"""
# The first five hours of a night in which the clock changes, forward and back.
NIGHTS = [
    ("Europe/Berlin", "2026-03-29 00:00+01"),
    ("Europe/Berlin", "2026-10-25 00:00+02"),
    ("America/New_York", "2026-03-08 00:00-05"),
    ("America/New_York", "2026-11-01 00:00-04"),
]
HOURS = 5
FIXED, HOURLY, OFTEN = "30 2 * * *", "0 * * * *", "*/10 * * * *"
DOUBLED = """
SELECT count(*) FROM (
    SELECT task_id FROM tasks_tick WHERE task_id IS NOT NULL GROUP BY task_id HAVING count(*) > 1) AS doubled
"""
SECOND = """
INSERT INTO tasks_task (task_path, ordering_key, status, claimed_by, attempt)
VALUES ('a.b', 'schedule:s', 'PROCESSING', 'w', 1)
"""
# A tick without its task, or a task without its tick: one of them was written alone.
APART = """
SELECT count(*) FROM tasks_tick FULL JOIN tasks_task ON tasks_task.id = tasks_tick.task_id
WHERE tasks_tick.task_id IS NULL OR tasks_task.id IS NULL
"""


def scheduler(url: str) -> int:
    """A process that ticks until it is killed; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    with contextlib.suppress(BaseException), psycopg.connect(url, autocommit=True, options=PATIENCE) as connection:
        while True:
            ticks.tick(connection)
            time.sleep(0.005)
    os._exit(1)


@contextlib.contextmanager
def schedulers_under_kills(url: str) -> Iterator[list[int]]:
    """The pids of ten; the test may put others in their place."""
    pids = [scheduler(url) for _ in range(NUMBER)]
    try:
        yield pids
    finally:
        for pid in pids:
            end(pid)


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@pytest.mark.parametrize(("zone", "begins"), NIGHTS, ids=str)
def test_ten_schedulers_under_kills_tick_each_time_of_a_night_once(database: QueueDatabase, zone, begins):
    clock, chance = Clock(database), random.Random(zone + begins)
    clock.set(begins)
    start = clock.now()
    end_of_night = start + timedelta(hours=HOURS)
    wanted: dict[str, list[datetime]] = {}
    kinds = (("fixed", FIXED, None), ("hourly", HOURLY, None), ("often", OFTEN, None), ("interval", None, 421))
    for name, cron, every in kinds:
        found = Recurrence(cron, every, zone)
        first = found.first(start)
        database.rows(ADD, name, PATH, cron, every, zone, first)
        wanted[name] = list(found.due(first, end_of_night))
    with schedulers_under_kills(database.url) as pids:
        while clock.now() < end_of_night:
            clock.step(STEP)
            time.sleep(KILLED_AFTER_SECONDS)  # somebody is in the middle of it, or not
            victim = chance.randrange(NUMBER)
            end(pids[victim])
            pids[victim] = scheduler(database.url)
        clock.set(end_of_night)
        wait_until(lambda: not database.value("SELECT count(*) FROM tasks_schedule WHERE next_at <= %s", end_of_night))
    made = {name: [] for name in wanted}
    for row in database.rows("SELECT schedule_name, at FROM tasks_tick ORDER BY at"):
        made[row.schedule_name].append(row.at)
    made = {name: [at for at in times if at <= end_of_night] for name, times in made.items()}
    assert made == wanted
    assert (len(made["fixed"]), len(made["hourly"])) == (1, HOURS)
    assert (database.value(APART), database.value(DOUBLED)) == (0, 0)


@pytest.mark.parametrize("overlap", ["skip", "queue"])
def test_ten_schedulers_never_let_two_tasks_run(database: QueueDatabase, overlap):
    """Overlapping tasks share a key, of which an index lets one run."""
    database.rows(ADD, "s", PATH, None, 1, "UTC", datetime.fromisoformat("2026-01-01 00:00Z"))
    database.rows("UPDATE tasks_schedule SET overlap = %s, missed = 'once'", overlap)
    with schedulers_under_kills(database.url):
        wait_until(lambda: database.value("SELECT count(*) FROM tasks_tick WHERE outcome = 'skipped'") >= 1)
    assert database.value("SELECT count(*) FROM tasks_task") == 1
    database.rows("UPDATE tasks_task SET status = 'PROCESSING', claimed_by = 'w', attempt = 1")
    with pytest.raises(psycopg.errors.UniqueViolation, match="one_per_key"):
        database.rows(SECOND)


class TestWorkers:
    """`run_worker` itself, on a server that restarts."""

    @pytest.fixture
    def database(self, breakable_database: QueueDatabase) -> QueueDatabase:
        return breakable_database

    def test_a_schedule_of_every_second_loses_no_tick_by_a_restart_and_a_kill(
        self, database, breakable_server, start_worker
    ):
        tick_for(database, breakable_server, start_worker, seconds=8, restarts=1, kills=1)


@pytest.mark.chaos
class TestAnHour(TestWorkers):
    def test_a_schedule_of_every_second_loses_no_tick_by_a_restart_and_a_kill(
        self, database, breakable_server, start_worker
    ):
        seconds = int(os.environ.get("TEST_SCHEDULE_SECONDS", "3600"))
        tick_for(database, breakable_server, start_worker, seconds=seconds, restarts=6, kills=30)


def tick_for(database, server, start_worker, *, seconds: int, restarts: int, kills: int) -> None:
    """Three supervisors make one tick in each of so many seconds, whatever happens to them and to the server."""
    path = worker_handlers.quick.module_path
    workers = [start_worker() for _ in range(3)]
    wait_until(
        lambda: database.value("SELECT count(*) FROM tasks_worker WHERE presence_epoch IS NOT NULL") == 3, seconds=150
    )
    database.rows(ADD, "s", path, None, 1, "UTC", None)
    database.rows("UPDATE tasks_schedule SET missed = 'skip'")
    wait_until(lambda: database.value("SELECT count(*) FROM tasks_tick") >= 1, seconds=60)
    first = database.value("SELECT min(at) FROM tasks_tick")
    harms = [lambda: outages.restart(server, database)] * restarts
    harms += [lambda: kill_one(workers, start_worker)] * kills
    random.Random(seconds).shuffle(harms)
    began, pause = time.monotonic(), seconds / (len(harms) + 1)
    for number, harm in enumerate(harms, 1):
        time.sleep(max(0.0, began + number * pause - time.monotonic()))
        harm()

    def is_over() -> bool:
        with contextlib.suppress(psycopg.OperationalError):
            return database.value("SELECT max(at) FROM tasks_tick") >= first + timedelta(seconds=seconds)
        database.close()
        return False

    wait_until(is_over, seconds=seconds + 90)
    for worker in workers:
        worker.send_all(signal.SIGKILL)
    times = [row.at for row in database.rows("SELECT at FROM tasks_tick ORDER BY at")]
    assert times == [first + timedelta(seconds=number) for number in range(len(times))]
    assert len(times) >= seconds
    assert (database.value(APART), database.value(DOUBLED)) == (0, 0)
    assert database.value("SELECT count(*) FROM tasks_tick WHERE outcome <> 'enqueued'") == 0
    print(f"{len(times)} ticks in {seconds} s with {restarts} restarts and {kills} kills")


def kill_one(workers, start_worker) -> None:
    """Kill a supervisor and its children, and start another."""
    workers.pop(0).send_all(signal.SIGKILL)
    workers.append(start_worker())
