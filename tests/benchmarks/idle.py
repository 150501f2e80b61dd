"""What Rowlock costs while little or nothing is to be done: transactions and processor time a second, and memory.

The database's figures are its own (pg_stat_database, and the processor time of its processes); one supervisor runs all
workers, as `run_worker --concurrency` does.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import IO

import psutil
import psycopg

from tests.benchmarks.bench import Bench
from tests.benchmarks.pipe import Pipe
from tests.benchmarks.report import Part, Table
from tests.benchmarks.subject import Rowlock
from tests.waiting import wait_until

SETTINGS = {"max_connections": "400"}
WORKERS = (1, 10, 50)
OTHERS = 200
SECONDS = 10.0
SETTLED_SECONDS = 3.0
A_SECOND = 100.0  # tasks of 1 ms, beside the idle
TRANSACTIONS = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
REGISTERED = "SELECT count(*) FROM tasks_worker WHERE stopped_at IS NULL"
# They hold their presence, in one session that stands for all of them, and their lease is long.
PRESENT = """
INSERT INTO tasks_worker (id, hostname, pid, lease_seconds, heartbeat_at, presence_epoch)
SELECT 'other' || n, 'elsewhere', n, 86400, now(), (SELECT token FROM tasks_epoch)
FROM generate_series(1, %s) AS n
"""
HOLD = """
SELECT pg_advisory_lock(hashtext('rowlock:presence:' || current_schema()), hashtext('other' || n))
FROM generate_series(1, %s) AS n
"""
HOLDING = """
INSERT INTO tasks_task (task_path, status, claimed_by, attempt, started_at)
SELECT 'tests.benchmarks.handlers.tasks.noop', 'PROCESSING', 'other' || 1 + n %% %s, 1, now()
FROM generate_series(1, 100000) AS n
"""


def run(scene: Bench) -> Part:
    part = scene.part("idle", "Idle: what workers cost that have little or nothing to do")
    table = Table(
        f"Over {scene.seconds(SECONDS):.0f} s",
        ["", "transactions a second", "database, % of a core", "workers, % of a core", "memory of one, MiB (PSS)"],
    )
    subject = Rowlock(scene.server.url, scene.pipe)
    subject.prepare()
    rounds = scene.rounds(1)
    for workers in WORKERS:
        for _ in range(rounds):
            row = measured(scene, subject, workers)
            table.rows.append([f"{workers} idle worker{'s' if workers > 1 else ''}", *row])
    for _ in range(rounds):
        row = measured(scene, subject, WORKERS[-1], tasks_a_second=A_SECOND)
        table.rows.append([f"{WORKERS[-1]} workers, {A_SECOND:.0f} tasks of 1 ms a second", *row])
    with crowd(subject):
        for _ in range(rounds):
            row = measured(scene, subject, 1, OTHERS)
            table.rows.append([f"1 idle worker beside {OTHERS} that hold 100,000 tasks", *row])
    part.tables.append(table)
    part.figures = {str(number): row for number, row in enumerate(table.rows)}
    part.notes = ["One supervisor for all workers; its own memory and processor time are shared out among them."]
    return part


def measured(scene: Bench, subject: Rowlock, workers: int, others: int = 0, tasks_a_second: float = 0.0) -> list[float]:
    """Transactions a second, the database's and the workers' share of a core, MiB of memory for each worker."""
    with subject.crew() as crew, psycopg.connect(subject.url, autocommit=True) as watch:
        subject.start_worker(crew, workers)
        [(supervisor, _)] = crew.members

        def all_are_registered() -> bool:
            crew.check()
            return watch.execute(REGISTERED).fetchone() == (workers + others,)

        wait_until(all_are_registered, seconds=60)
        time.sleep(SETTLED_SECONDS)
        ours = psutil.Process(supervisor.pid)
        database = psutil.Process(scene.server.process.pid)  # type: ignore[union-attr]
        sender = subject.start(crew, "send") if tasks_a_second else None
        before, began = snapshot(watch, ours, database), time.monotonic()
        if sender:
            send(sender.stdin, scene.seconds(SECONDS), tasks_a_second, scene.pipe)
        else:
            time.sleep(scene.seconds(SECONDS))
        passed = time.monotonic() - began
        [transactions, server, worker] = [
            (after - first) / passed for first, after in zip(before, snapshot(watch, ours, database), strict=True)
        ]
        memory = sum(process.memory_full_info().pss for process in family(ours)) / workers / 2**20
        crew.finish()
    row = [transactions, 100 * server, 100 * worker, memory]
    scene.say(
        f"idle, {workers} workers, {others} others, {tasks_a_second:.0f} tasks a second: "
        + ", ".join(f"{cell:.1f}" for cell in row)
    )
    return row


def send(letters: IO[bytes] | None, seconds: float, tasks_a_second: float, pipe: Pipe) -> None:
    """Have one task of 1 ms enqueued at a time, evenly over these seconds.

    What is told of them is dropped: a pipe that is full would hold up whoever tells.
    """
    assert letters
    began = time.monotonic()
    for number in range(round(seconds * tasks_a_second)):
        time.sleep(max(0.0, began + number / tasks_a_second - time.monotonic()))
        letters.write(f"{number} 1\n".encode())
        letters.flush()
        pipe.forget()


def snapshot(watch: psycopg.Connection, ours: psutil.Process, database: psutil.Process) -> tuple[float, float, float]:
    """Transactions so far, and the processor seconds of the database and of the workers."""
    watch.execute("SELECT pg_stat_clear_snapshot()")
    [[transactions]] = watch.execute(TRANSACTIONS).fetchall()
    return float(transactions), cpu_seconds(database), cpu_seconds(ours)


def cpu_seconds(root: psutil.Process) -> float:
    found = 0.0
    for process in family(root):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            found += times.user + times.system
    return found


def family(root: psutil.Process) -> list[psutil.Process]:
    return [root, *root.children(recursive=True)]


@contextlib.contextmanager
def crowd(subject: Rowlock) -> Iterator[None]:
    """So many other workers are there, each with tasks in its hands."""
    with psycopg.connect(subject.url, autocommit=True) as session:
        session.execute(HOLD, [OTHERS])
        session.execute(PRESENT, [OTHERS])
        session.execute(HOLDING, [OTHERS])
        session.execute("VACUUM ANALYZE tasks_task, tasks_worker")
        yield
        session.execute("TRUNCATE tasks_task, tasks_worker CASCADE")
