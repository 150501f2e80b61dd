"""`python -m tests.benchmarks.drain [TASKS [ROUNDS]]`: tasks a second of workers that find a full queue.

Beside it the floor of the database itself: sessions that claim and complete 100 rows at a time with nothing
around it, alternated with ours in one run, on a server that syncs to disk. The time is the workers' own, from the first
claim to the last completion; the tasks do nothing.
"""

import statistics
import sys
import threading
import time
from collections.abc import Callable

import psycopg

from tests import databases, processes
from tests.benchmarks.stage import Stage
from tests.databases import QueueDatabase
from tests.ledger import Ledger
from tests.postgres import throw_away_server

TASKS, ROUNDS = 100_000, 3
DURABLE = {"fsync": "on", "full_page_writes": "on"}
FILL = "INSERT INTO tasks_task (task_path) SELECT 'tests.tasks.worker_app.tasks.quick' FROM generate_series(1, %s)"
TOOK = """
SELECT extract(epoch FROM max(finished_at) - min(started_at))::float8 FROM tasks_task WHERE status = 'COMPLETED'
"""
FLOOR_TABLE = """
DROP TABLE IF EXISTS floor;
CREATE TABLE floor (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, status text NOT NULL DEFAULT 'READY');
CREATE INDEX ON floor (id) WHERE status = 'READY'
"""
FLOOR_FILL = "INSERT INTO floor (status) SELECT 'READY' FROM generate_series(1, %s)"
FLOOR_CLAIM = """
UPDATE floor SET status = 'PROCESSING' WHERE id IN (
    SELECT id FROM floor WHERE status = 'READY' ORDER BY id LIMIT 100 FOR UPDATE SKIP LOCKED) RETURNING id
"""
FLOOR_COMPLETE = "UPDATE floor SET status = 'COMPLETED' WHERE id = ANY(%s)"


def ours(scene: Stage, tasks: int, workers: int) -> float:
    """Tasks a second of so many workers."""
    scene.database.rows("TRUNCATE tasks_task, tasks_attempt")
    scene.database.rows(FILL, tasks)
    scene.database.rows("VACUUM ANALYZE tasks_task")
    scene.database.close()
    started = [scene.start("--burst") for _ in range(workers)]
    assert [worker.wait(300) for worker in started] == [0] * workers
    return tasks / float(scene.database.value(TOOK))


def floor(scene: Stage, tasks: int, workers: int) -> float:
    """Rows a second of so many sessions that claim and complete a hundred at a time."""
    scene.database.rows(FLOOR_TABLE)
    scene.database.rows(FLOOR_FILL, tasks)
    scene.database.rows("VACUUM ANALYZE floor")
    sessions = [threading.Thread(target=empty, args=(scene.database.url,)) for _ in range(workers)]
    began = time.perf_counter()
    for session in sessions:
        session.start()
    for session in sessions:
        session.join()
    return tasks / (time.perf_counter() - began)


def empty(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        while ids := [row[0] for row in connection.execute(FLOOR_CLAIM).fetchall()]:
            connection.execute(FLOOR_COMPLETE, [ids])


def main(tasks: int = TASKS, rounds: int = ROUNDS) -> None:
    with throw_away_server(**DURABLE) as server:
        url, ledger_url = databases.named(server.url, "bench"), databases.named(server.url, "ledger")
        databases.migrate(url)
        databases.create(ledger_url)
        scene = Stage(QueueDatabase(url), Ledger(ledger_url))
        with processes.ended_at_last(scene.workers, is_quiet=True):
            compare(scene, tasks, rounds)


def compare(scene: Stage, tasks: int, rounds: int) -> None:
    """Both, in turn, with one worker and with two."""
    print(f"{'tasks a second':<26} {'median':>9} {'least':>9} {'most':>9}")
    for workers in (1, 2):
        measures: dict[str, Callable[[Stage, int, int], float]] = {"floor, batch 100": floor, "Rowlock": ours}
        rates: dict[str, list[float]] = {name: [] for name in measures}
        for _ in range(rounds):
            for name, measure in measures.items():
                rates[name].append(measure(scene, tasks, workers))
        for name, found in rates.items():
            label = f"{name}, {workers} worker{'s' if workers > 1 else ''}"
            print(f"{label:<26} {statistics.median(found):>9,.0f} {min(found):>9,.0f} {max(found):>9,.0f}", flush=True)
        ratio = statistics.median(rates["Rowlock"]) / statistics.median(rates["floor, batch 100"])
        print(f"{'ratio of the medians':<26} {ratio:>9.2f}", flush=True)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
