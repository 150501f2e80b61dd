"""What a soak looks at: the queue, its tables, the memory of every process, sessions and locks, all at one moment."""

import contextlib
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

import psutil

from tasks.queue import throughput
from tests.databases import QueueDatabase
from tests.processes import Worker

MEBIBYTE = 2**20

TABLES = """
SELECT relname::text AS name, n_dead_tup AS dead, vacuum_count + autovacuum_count AS vacuums,
    pg_table_size(relid) AS heap_bytes, pg_indexes_size(relid) AS index_bytes
FROM pg_stat_user_tables WHERE relname IN ('tasks_task', 'tasks_worker', 'tasks_throughput', 'tasks_attempt')
"""
WAITING = """
SELECT count(*) AS number, coalesce(extract(epoch FROM clock_timestamp() - min(run_after)), 0)::float8 AS seconds
FROM (SELECT run_after FROM tasks_task WHERE status = 'READY' LIMIT 1000000) AS ready
"""
SESSIONS = """
SELECT pid, split_part(application_name, ':', 1) || ':' || split_part(application_name, ':', 2) AS kind,
    state, state_change
FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""
LOCKS = """
SELECT pid, locktype, mode FROM pg_locks
WHERE pid <> pg_backend_pid() AND (database IS NULL OR database = (
    SELECT oid FROM pg_database WHERE datname = current_database()))
"""


@dataclass(frozen=True)
class Table:
    """One table: rows that nobody can see any more, bytes of it and of its indexes, and how often it was cleaned."""

    dead: int
    heap_bytes: int
    index_bytes: int
    vacuums: int


@dataclass(frozen=True)
class Sample:
    """One moment. `seconds` since the start; `done` ended attempts, `waits` of them by bucket (queue/throughput.py),
    both
    since the start; `memory` in bytes: resident of each process, private of the database's sessions together.
    """

    seconds: float
    phase: str
    enqueued: int
    done: int
    waits: list[int]
    waiting: int
    oldest_seconds: float
    tables: dict[str, Table]
    memory: dict[str, int]
    pids: list[int]
    files: int
    sessions: dict[str, int]
    left_over: dict[str, int]  # locks of sessions that do nothing, by kind


@dataclass
class Probe:
    """Looks through the database's own connection. `web`: gunicorn's main process, where there is one."""

    database: QueueDatabase
    postmaster: psutil.Process
    workers: list[Worker] = field(default_factory=list)
    web: psutil.Process | None = None

    def sample(self, seconds: float, phase: str, enqueued: int) -> Sample:
        [waiting] = self.database.rows(WAITING)
        totals = throughput.totals(self.database.connection)
        locks = self.left_over()
        sessions = self.database.rows(SESSIONS)
        named = self.processes()
        return Sample(
            seconds=round(seconds, 1),
            phase=phase,
            enqueued=enqueued,
            done=sum(total.completed + total.failed for total in totals),
            waits=list(map(sum, zip(*filter(None, (total.wait_buckets for total in totals)), strict=True))),
            waiting=waiting.number,
            oldest_seconds=round(waiting.seconds, 3),
            tables={row.name: Table(row.dead, row.heap_bytes, row.index_bytes, row.vacuums) for row in self.tables()},
            memory={
                **{name: resident(process) for name, process in named.items()},
                "database sessions": sum(private(row.pid) for row in sessions),
            },
            pids=[process.pid for process in named.values()],
            files=sum(open_files(process) for process in named.values()),
            sessions=dict(Counter(row.kind for row in sessions)),
            left_over=locks,
        )

    def tables(self) -> list:
        return self.database.rows(TABLES)

    def processes(self) -> dict[str, psutil.Process]:
        """Every process of the workers and of the web server, by a name that stays while none is replaced."""
        found = {}
        for number, worker in enumerate(self.workers, 1):
            found[f"supervisor {number}"] = psutil.Process(worker.pid)
            for child, pid in enumerate(sorted(set(worker.members()) - {worker.pid}), 1):
                found[f"worker {number}.{child}"] = psutil.Process(pid)
        if self.web:
            found["gunicorn"] = self.web
            found |= {f"web {number}": child for number, child in enumerate(self.web.children(), 1)}
        return found

    def left_over(self) -> dict[str, int]:
        """Locks of sessions that were idle before and after the locks were read: nothing runs that could need them."""
        before = self.idle()
        locks = self.database.rows(LOCKS)
        idle = before & self.idle()
        pids = {pid for pid, _ in idle}
        return dict(Counter(f"{lock.locktype} {lock.mode}" for lock in locks if lock.pid in pids))

    def idle(self) -> set[tuple[int, datetime]]:
        return {(row.pid, row.state_change) for row in self.database.rows(SESSIONS) if row.state == "idle"}


def resident(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.memory_info().rss
    return 0


def private(pid: int) -> int:
    """Without the buffers that all sessions share, of which each maps more the longer it lives."""
    with contextlib.suppress(psutil.NoSuchProcess):
        memory = psutil.Process(pid).memory_info()
        return memory.rss - memory.shared
    return 0


def open_files(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.num_fds()
    return 0
