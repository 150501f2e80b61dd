"""Claims beside a transaction that was open for hours, without the hours.

`python -m tests.chaos.aged` opens a transaction and leaves what RATE tasks a second would have left by then: each task
was inserted, claimed, completed and deleted, by statements over many rows. At each step a supervisor with two workers
then gets RATE tasks a second for a minute, and some ten more that have ordering keys. Eight hours take a quarter of
an hour and 40 GB. `--report DIR` keeps aged.json there.
"""

import argparse
import itertools
import json
import os
import signal
import sys
import threading
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg

from tasks.support.database import PLANS
from tests import databases, processes
from tests.benchmarks.bench import DURABLE
from tests.chaos import soak_report
from tests.chaos.soak import QUICK, TICK_SECONDS, forgotten_transaction
from tests.databases import ROOT, QueueDatabase
from tests.ledger import Ledger
from tests.postgres import throw_away_server
from tests.waiting import wait_until

RATE = 2000
HOURS = (0.5, 2.0)
SECONDS, PATIENCE_SECONDS = 60.0, 300
WARM_UP_SECONDS = 20.0  # the first claims of a new worker pass all dead rows; after hours it takes seconds
WORK = "tests.tasks.worker_app.tasks.work"
CHUNK, FILLERS = 100_000, 2
KEYS = 50
# due: when the last of them was due, in seconds before now.
INSERT = """
WITH inserted AS (
    INSERT INTO tasks_task (task_path, created_at, run_after)
    SELECT %(task_path)s, at, at FROM (
        SELECT statement_timestamp() - make_interval(secs => %(due)s + n::float8 / %(rate)s) AS at
        FROM generate_series(%(count)s::int - 1, 0, -1) AS n) AS row
    RETURNING id
)
SELECT min(id) AS lowest, max(id) AS highest FROM inserted
"""
# `status || ''`: the planner takes the index of what is READY for empty, but it is full of dead rows.
CLAIM = """
WITH locked AS MATERIALIZED (
    SELECT id FROM tasks_task
    WHERE id BETWEEN %(lowest)s AND %(highest)s AND status || '' = 'READY' FOR UPDATE SKIP LOCKED)
UPDATE tasks_task AS task SET status = 'PROCESSING', version = version + 1, attempt = 1, claimed_by = %(worker)s,
    started_at = clock_timestamp()
FROM locked WHERE task.id = locked.id
"""
COMPLETE = """
UPDATE tasks_task SET status = 'COMPLETED', version = version + 1, claimed_by = NULL, finished_by = %(worker)s,
    finished_at = clock_timestamp()
WHERE id BETWEEN %(lowest)s AND %(highest)s AND status || '' = 'PROCESSING' AND claimed_by || '' = %(worker)s
"""
PRUNE = "DELETE FROM tasks_task WHERE id BETWEEN %(lowest)s AND %(highest)s AND status || '' = 'COMPLETED'"
SIZES = """
SELECT n_dead_tup AS dead_rows, pg_table_size(relid) / 1048576.0 AS table_mib,
    pg_indexes_size(relid) / 1048576.0 AS indexes_mib
FROM pg_stat_user_tables WHERE relname = 'tasks_task'
"""
FRONT = """
SELECT id FROM tasks_task WHERE status = 'READY' AND ordering_key IS NULL AND concurrency_key IS NULL
ORDER BY queue_name, priority DESC, run_after, id LIMIT 1
"""
LATEST = "SELECT last_value FROM tasks_task_id_seq"
# Those of the load; what the fillers left has lower ids.
ENDED = """
SELECT count(*) AS sent, count(finished_at) AS ended,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY started_at - created_at) AS p50,
    percentile_disc(0.99) WITHIN GROUP (ORDER BY started_at - created_at) AS p99
FROM tasks_task WHERE id > %s AND (ordering_key IS NOT NULL) = %s
"""


@dataclass
class Figures:
    """Beside a transaction of `hours`, with the workers of `checkout`. Units stand in the names."""

    hours: float
    checkout: str
    dead_rows: int
    table_mib: float
    indexes_mib: float
    front_walk_s: float
    enqueued_a_second: float
    ended_a_second: float
    pickup_p50_ms: float | None
    pickup_p99_ms: float | None
    keyed_enqueued_a_second: float
    keyed_ended_a_second: float
    keyed_p50_ms: float | None
    keyed_p99_ms: float | None
    recovery_s: float  # from kill -9 of a worker until its task runs elsewhere


def fill(url: str, worker: str, number: int) -> None:
    """Each task was due when it would have been: a claim may begin with those of the last minutes."""
    with psycopg.connect(url, autocommit=True, options=f"-c synchronous_commit=off {PLANS}") as session:
        for turn in range(number // CHUNK):
            due = (number - CHUNK * (turn + 1)) * FILLERS / RATE
            rows = {"task_path": QUICK, "due": due, "rate": RATE / FILLERS, "count": CHUNK}
            lowest, highest = session.execute(INSERT, rows).fetchone()
            # A name of its own: to find what one worker runs, the server passes all that it has run so far.
            params = {"lowest": lowest, "highest": highest, "worker": f"{worker}-{turn}"}
            for statement in (CLAIM, COMPLETE, PRUNE):
                session.execute(statement, params)


def age(url: str, number: int) -> None:
    """Leave what `number` tasks leave."""
    fillers = [threading.Thread(target=fill, args=(url, f"w{turn}", number // FILLERS)) for turn in range(FILLERS)]
    for filler in fillers:
        filler.start()
    for filler in fillers:
        filler.join()


def load(url: str, over: threading.Event) -> None:
    """RATE tasks a second until it is over, and one with a key at each tick."""
    began, sent, keys = time.monotonic(), 0, itertools.cycle(range(KEYS))
    with closing(QueueDatabase(url)) as source:
        while not over.wait(TICK_SECONDS):
            wanted = int((time.monotonic() - began) * RATE) - sent
            source.enqueue(QUICK, count=wanted)
            source.enqueue(QUICK, ordering_key=f"key-{next(keys)}")
            sent += wanted


def measure(database: QueueDatabase, hours: float, checkout: Path) -> Figures:
    [sizes] = database.rows(SIZES)
    began = time.monotonic()
    database.rows(FRONT)
    walk = time.monotonic() - began
    before = database.value(LATEST)
    workers = [processes.start_worker(database.url, database.url, "--concurrency", 2, checkout=checkout)]
    with processes.ended_at_last(workers, is_quiet=True):
        over = threading.Event()
        source = threading.Thread(target=load, args=(database.url, over))
        source.start()
        time.sleep(WARM_UP_SECONDS)
        first = database.value(LATEST)
        time.sleep(SECONDS)  # the length of the measurement
        [[ended], [keyed]] = (database.rows(ENDED, first, has_key) for has_key in (False, True))
        over.set()
        source.join()
        recovery = recover(database)
    database.rows("DELETE FROM tasks_task WHERE id > %s", before)
    sizes_mib = float(sizes.table_mib), float(sizes.indexes_mib)
    of_keys = keyed.sent / SECONDS, keyed.ended / SECONDS, *milliseconds(keyed)
    return Figures(
        hours, checkout.name, sizes.dead_rows, *sizes_mib, walk,
        ended.sent / SECONDS, ended.ended / SECONDS, *milliseconds(ended), *of_keys, recovery,
    )  # fmt: skip


def milliseconds(ended: Any) -> list[float | None]:
    """The pickup of the tasks in a row of ENDED, at p50 and p99; None if none began."""
    return [wait and 1000 * wait.total_seconds() for wait in (ended.p50, ended.p99)]


def recover(database: QueueDatabase) -> float:
    """Kill the worker of a running task; seconds until another one runs it."""
    with closing(Ledger(database.url)) as ledger:
        [task_id] = database.enqueue(WORK, PATIENCE_SECONDS)
        [first] = wait_until(lambda: ledger.effects(task_id), seconds=PATIENCE_SECONDS)
        os.kill(first.pid, signal.SIGKILL)
        began = time.monotonic()
        wait_until(lambda: len(ledger.effects(task_id)) > 1, seconds=PATIENCE_SECONDS)
        return time.monotonic() - began


def main(words: list[str]) -> None:
    given = argparse.ArgumentParser(prog="python -m tests.chaos.aged", description=__doc__)
    given.add_argument("--hours", type=float, nargs="+", default=HOURS, help="at these ages (default: 0.5 2)")
    given.add_argument("--checkouts", type=Path, nargs="+", default=[ROOT], help="the workers' code, in turn")
    given.add_argument("--report", type=Path, help="the folder of aged.json")
    chosen = given.parse_args(words)
    found: list[dict[str, object]] = []
    with throw_away_server(**DURABLE) as server:
        url = databases.named(server.url, "aged")
        databases.migrate(url)
        with closing(QueueDatabase(url)) as database, forgotten_transaction(url):
            so_far = 0.0
            for hours in sorted(chosen.hours):
                age(url, int((hours - so_far) * 3600 * RATE))
                so_far = hours
                for checkout in chosen.checkouts:
                    found.append(asdict(measure(database, hours, checkout)))
                    print(json.dumps(found[-1]), flush=True)
            versions = soak_report.surroundings(database.value("SHOW server_version"))
    text = {"versions": versions, "rate": RATE, "seconds": SECONDS, "ages": found}
    if chosen.report:
        (chosen.report / "aged.json").write_text(json.dumps(text, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
