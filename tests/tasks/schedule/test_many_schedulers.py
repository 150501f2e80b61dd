"""Many schedulers at once, killed in the middle, at changes of the clock and restarts of the server: each tick once."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

import psycopg
import pytest

from tasks.schedule import ticks
from tasks.support.recurrence import Recurrence
from tests import databases, outages, processes, replica
from tests.databases import QueueDatabase
from tests.ledger import Ledger
from tests.processes import Worker
from tests.shifted import Clock
from tests.tasks import handlers
from tests.tasks.worker_app import tasks as worker_handlers
from tests.waiting import wait_until
from tests.workers import StartWorker

PATH = handlers.nothing.module_path
NUMBER = 10
PATIENCE = "-c lock_timeout=250ms"
STEP, KILLED_AFTER_SECONDS = "7 minutes", 0.01
ADD = """
INSERT INTO tasks_schedule (name, task_path, cron, every_seconds, timezone, missed, overlap, next_at)
VALUES (%s, %s, %s, %s, %s, 'all', 'allow', %s)
"""
# The beginning of three hours in which the clock changes, forward and back.
NIGHTS = [
    ("Europe/Berlin", "2026-03-29 01:00+01"),
    ("Europe/Berlin", "2026-10-25 01:00+02"),
    ("America/New_York", "2026-03-08 01:00-05"),
    ("America/New_York", "2026-11-01 01:00-04"),
]
HOURS = 3
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

    def test_a_schedule_of_every_second_loses_no_tick(self, database, breakable_server, start_worker):
        harm(database, start_worker, 8, [lambda: outages.restart(breakable_server, database)], kills=1)

    @pytest.mark.chaos
    def test_it_makes_3600_in_an_hour(self, database, breakable_server, start_worker):
        seconds = int(os.environ.get("TEST_SCHEDULE_SECONDS", "3600"))
        restarts = [lambda: outages.restart(breakable_server, database)] * 6
        harm(database, start_worker, seconds, restarts, kills=30)


@pytest.mark.chaos
def test_a_failover_loses_no_tick_and_doubles_none(start_worker_of):
    def fail_over() -> None:
        cluster.kill_primary()
        cluster.promote()
        database.close()

    with replica.cluster() as cluster:
        url = cluster.url("rowlock_failover")
        databases.migrate(url)
        database = QueueDatabase(url)
        with contextlib.closing(database):
            harm(database, start_worker_of(url), 20, [fail_over], kills=1)


@pytest.fixture
def start_worker_of(ledger: Ledger) -> Iterator[Callable[[str], StartWorker]]:
    """Starts workers on the database with this URL."""
    workers: list[Worker] = []

    def start(url: str) -> Worker:
        workers.append(processes.start_worker(url, ledger.url))
        return workers[-1]

    with processes.ended_at_last(workers):
        yield lambda url: lambda: start(url)


def harm(
    database: QueueDatabase, start_worker: StartWorker, seconds: int, harms: list[Callable[[], object]], *, kills: int
) -> None:
    """Three supervisors make one tick in each of so many seconds, whatever happens to them and to the server."""
    workers = [start_worker() for _ in range(3)]
    present = "SELECT count(*) FROM tasks_worker WHERE presence_epoch IS NOT NULL"
    wait_until(lambda: database.value(present) == len(workers), seconds=150)
    database.rows(ADD, "s", worker_handlers.quick.module_path, None, 1, "UTC", None)
    database.rows("UPDATE tasks_schedule SET missed = 'skip'")
    wait_until(lambda: database.value("SELECT count(*) FROM tasks_tick") >= 1, seconds=60)
    first = database.value("SELECT min(at) FROM tasks_tick")

    def kill_one() -> None:
        workers.pop(0).send_all(signal.SIGKILL)
        workers.append(start_worker())

    planned = [*harms, *[kill_one] * kills]
    random.Random(seconds).shuffle(planned)
    began, pause = time.monotonic(), seconds / (len(planned) + 1)
    for number, act in enumerate(planned, 1):
        time.sleep(max(0.0, began + number * pause - time.monotonic()))
        act()

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
    print(f"{len(times)} ticks in {seconds} s, {len(harms)} outages and {kills} kills")
