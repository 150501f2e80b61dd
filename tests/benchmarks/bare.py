"""The least that a worker in Python does on rows that stay: it claims ids, calls a function for each, completes them.

500 at a time, without queue, priority, key, fence, attempt, constraint or page; nobody could tell what happened. Each
process has two sessions, as Rowlock's busy workers do: while rows run, the next are claimed and the last completed.
Beside it stands what the features cost, and what no worker of this kind can pass on a machine.
"""

import multiprocessing
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from time import monotonic

import psycopg

from dashboard.embedded.server import EmbeddedServer
from tests.benchmarks.floors import Floor

BATCH = 500
CLAIM = """
WITH candidate AS MATERIALIZED (
    SELECT id FROM floor WHERE status = 'READY' AND id > %s::bigint ORDER BY id LIMIT 500 FOR UPDATE SKIP LOCKED
) UPDATE floor SET status = 'PROCESSING' FROM candidate WHERE floor.id = candidate.id RETURNING floor.id
"""
COMPLETE = "UPDATE floor SET status = 'COMPLETED' WHERE id = ANY (%s::bigint[])"
CONTEXT = multiprocessing.get_context("spawn")
READY_SECONDS = 60


class PythonFloor:
    """On the table of the other floors."""

    name = "Python on bare rows, batch 500"

    def __init__(self, server: EmbeddedServer) -> None:
        self.floor = Floor(server, BATCH)

    def drain(self, tasks: int, workers: int) -> float:
        """Rows a second of so many processes, from the moment in which all are connected."""
        self.floor.fill(tasks)
        ready, ended = CONTEXT.Barrier(workers + 1), CONTEXT.SimpleQueue()
        processes = [CONTEXT.Process(target=work, args=(self.floor.url, ready, ended)) for _ in range(workers)]
        for process in processes:
            process.start()
        ready.wait(READY_SECONDS)
        began = monotonic()
        counts = [ended.get() for _ in processes]
        seconds = monotonic() - began
        for process in processes:
            process.join()
        assert sum(counts) == tasks
        return tasks / seconds


def work(url: str, ready: Barrier, ended: "SimpleQueue[int]") -> None:
    """One process: until nothing is ready any more."""
    with psycopg.connect(url, autocommit=True) as claims, psycopg.connect(url, autocommit=True) as completions:
        claims.prepare_threshold = completions.prepare_threshold = 0
        ready.wait(READY_SECONDS)
        count = 0
        ids = claimed(claims, behind=0)
        while ids:
            count += len(ids)
            with claims.pipeline(), completions.pipeline():
                answer = claims.execute(CLAIM, [max(ids)], binary=True)
                for task_id in ids:
                    handle(task_id)
                completions.execute(COMPLETE, [f"{{{','.join(map(str, ids))}}}"])
            ids = [row[0] for row in answer.fetchall()] or claimed(claims, behind=0)
    ended.put(count)


def claimed(connection: psycopg.Connection, *, behind: int) -> list[int]:
    return [row[0] for row in connection.execute(CLAIM, [behind], binary=True).fetchall()]


def handle(_task_id: int) -> None:
    """What a task does."""
