"""The facts behind verdicts, gathered for one page of tasks in a fixed number of statements."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.db import connection
from django.utils.functional import cached_property

from tasks.diagnosis import limits
from tasks.diagnosis.limits import Limits
from tasks.locking import rowlocks
from tasks.locking.rowlocks import RowLock
from tasks.models import HOLDS_ITS_KEY, Queue, Task, TaskStatus
from tasks.queue import presence
from tasks.queue.presence import WorkerState
from tasks.queue.release import LOCKED
from tasks.support import audit, database
from tasks.support.database import fetch, session_name

COUNT_CAP = 1000

# The holder of each key, as in the claim: the running row, else the earliest unfinished one.
KEYS = """
SELECT wanted.key, coalesce(running.id, first.id) AS holder_id, unfinished.number
FROM unnest(%(keys)s::text[]) AS wanted (key)
CROSS JOIN LATERAL (
    SELECT id FROM tasks_task WHERE ordering_key = wanted.key AND status IN ('READY', 'PROCESSING')
    ORDER BY id LIMIT 1) AS first
LEFT JOIN LATERAL (
    SELECT id FROM tasks_task WHERE ordering_key = wanted.key AND status = 'PROCESSING' LIMIT 1) AS running ON true
CROSS JOIN LATERAL (
    SELECT count(*) AS number FROM (
        SELECT FROM tasks_task WHERE ordering_key = wanted.key AND status IN ('READY', 'PROCESSING')
        LIMIT %(cap)s::int + 2) AS capped) AS unfinished
"""

# The order of the claim, by its loose index scan: queue by queue, priority by priority, up to the cap.
POSITIONS = """
WITH RECURSIVE pair AS (
    (SELECT queue.name, first.priority FROM unnest(%(queues)s::text[]) AS queue (name), LATERAL (
        SELECT task.priority FROM tasks_task AS task
        WHERE task.status = 'READY' AND task.ordering_key IS NULL AND task.concurrency_key IS NULL
          AND task.queue_name = queue.name
        ORDER BY task.priority DESC LIMIT 1) AS first)
    UNION ALL
    SELECT pair.name, next.priority FROM pair, LATERAL (
        SELECT task.priority FROM tasks_task AS task
        WHERE task.status = 'READY' AND task.ordering_key IS NULL AND task.concurrency_key IS NULL
          AND task.queue_name = pair.name
          AND task.priority < pair.priority
        ORDER BY task.priority DESC LIMIT 1) AS next
), numbered AS (
    SELECT due.id, row_number() OVER (
        PARTITION BY due.name ORDER BY due.priority DESC, due.run_after, due.id) AS position
    FROM unnest(%(queues)s::text[]) AS queue (name), LATERAL (
        SELECT pair.name, pair.priority, task.run_after, task.id
        FROM (SELECT * FROM pair WHERE pair.name = queue.name ORDER BY pair.priority DESC) AS pair, LATERAL (
            SELECT task.run_after, task.id FROM tasks_task AS task
            WHERE task.status = 'READY' AND task.ordering_key IS NULL AND task.concurrency_key IS NULL
              AND task.queue_name = pair.name
              AND task.priority = pair.priority AND task.run_after <= statement_timestamp()
            ORDER BY task.run_after, task.id LIMIT %(cap)s::int) AS task
        ORDER BY pair.priority DESC, task.run_after, task.id LIMIT %(cap)s::int) AS due
)
SELECT id, position FROM numbered WHERE id = ANY(%(ids)s::bigint[])
"""

# A worker has two sessions, its own and its handlers'; show the active one.
SESSIONS = """
SELECT DISTINCT ON (application_name) application_name, pid, wait_event_type, wait_event,
    CASE wait_event_type WHEN 'Lock' THEN pg_blocking_pids(pid) ELSE '{}' END AS blockers
FROM pg_stat_activity
WHERE application_name = ANY(%(names)s::text[]) AND datname = current_database()
ORDER BY application_name, state = 'active' DESC, xact_start NULLS LAST, pid
"""
ERRORS = """
SELECT DISTINCT ON (task_id) task_id, exception_class, worker_id FROM tasks_attempt
WHERE task_id = ANY(%(ids)s::bigint[]) ORDER BY task_id, id DESC
"""

CANCELLERS = """
SELECT DISTINCT ON (target) target, actor FROM tasks_intervention
WHERE target = ANY(%(targets)s::text[]) AND action LIKE 'cancel%%' ORDER BY target, id DESC
"""


@dataclass(frozen=True)
class KeyState:
    """The task that holds an ordering key, and the number of tasks behind it (at most the cap plus one)."""

    holder_id: int
    waiting: int


@dataclass(frozen=True)
class WorkerSession:
    """The activity of a worker's database session: its process id, its wait event, and its blockers."""

    pid: int
    wait_event_type: str | None = None
    wait_event: str | None = None
    blockers: Sequence[int] = ()

    @property
    def is_idle(self) -> bool:
        """True if the server waits for the client's next statement."""
        return self.wait_event == "ClientRead"

    @property
    def waits_for(self) -> str:
        """Its wait event, for example `Lock:transactionid`; empty if it waits for nothing but its client."""
        return "" if self.wait_event is None or self.is_idle else f"{self.wait_event_type}:{self.wait_event}"


@dataclass(frozen=True)
class Facts:
    """Everything about one page of tasks, as of `now` by the database's clock.

    `positions` are those in the order of the claim from 1, up to COUNT_CAP; `errors` the classes of last exceptions;
    `locked_by` the workers that gave READY tasks back last, because they had no key for their arguments.
    """

    now: datetime
    workers: Mapping[str, WorkerState] = field(default_factory=dict)
    queues: Mapping[str, Queue] = field(default_factory=dict)
    keys: Mapping[str, KeyState] = field(default_factory=dict)
    limits: Limits = field(default_factory=dict)
    locks: Mapping[int, RowLock] = field(default_factory=dict)
    positions: Mapping[int, int] = field(default_factory=dict)
    sessions: Mapping[str, WorkerSession] = field(default_factory=dict)
    errors: Mapping[int, str] = field(default_factory=dict)
    cancellers: Mapping[int, str] = field(default_factory=dict)
    locked_by: Mapping[int, str] = field(default_factory=dict)

    @cached_property
    def live_workers(self) -> list[WorkerState]:
        """Computed once, not for each of some hundreds of tasks."""
        return [worker for worker in self.workers.values() if worker.is_alive]

    def servers(self, queue_name: str) -> list[WorkerState]:
        """The live workers that claim from this queue."""
        return [worker for worker in self.live_workers if worker.serves(queue_name)]


def gather(tasks: Iterable[Task], *, always_workers: bool = False, always_locks: bool = False) -> Facts:
    """The facts for at most some hundreds of tasks: thirteen statements, however many tasks there are.

    Workers are read only if a task is unfinished, unless `always_workers`; locks only of READY rows, whose verdicts
    they decide, unless `always_locks`.
    """
    tasks = list(tasks)
    ready = [task for task in tasks if task.status == TaskStatus.READY]
    processing = [task for task in tasks if task.status == TaskStatus.PROCESSING]
    unfinished = [task for task in tasks if task.status in HOLDS_ITS_KEY]
    # Workers are read before the clock, so that no age of theirs is negative.
    workers = presence.states() if unfinished or always_workers else {}
    now = database.now(connection)
    errors = _errors(tasks)
    return Facts(
        now=now,
        workers=workers,
        queues=Queue.objects.in_bulk({task.queue_name for task in unfinished}),
        keys=_keys(unfinished),
        limits=limits.gather(ready),
        locks=rowlocks.lockers(Task, [task.pk for task in (tasks if always_locks else ready)]),
        positions=_positions(ready, now),
        sessions=_sessions(processing),
        errors={task_id: error for task_id, (error, _) in errors.items()},
        cancellers=_cancellers(tasks),
        locked_by={task_id: worker_id for task_id, (error, worker_id) in errors.items() if error == LOCKED},
    )


def _keys(tasks: list[Task]) -> dict[str, KeyState]:
    keys = list({task.ordering_key for task in tasks if task.ordering_key is not None})
    rows = fetch(connection, KEYS, {"keys": keys, "cap": COUNT_CAP}) if keys else []
    return {row["key"]: KeyState(row["holder_id"], row["number"] - 1) for row in rows}


def is_plain(task: Task) -> bool:
    """True if the task waits in the line of its queue alone."""
    return task.ordering_key is None and task.concurrency_key is None


def _positions(ready: list[Task], now: datetime) -> dict[int, int]:
    due = {task.pk: task.queue_name for task in ready if is_plain(task) and task.run_after <= now}
    params = {"queues": list(set(due.values())), "ids": list(due), "cap": COUNT_CAP}
    return {row["id"]: row["position"] for row in (fetch(connection, POSITIONS, params) if due else [])}


def _sessions(processing: list[Task]) -> dict[str, WorkerSession]:
    worker_ids = {session_name("worker", str(task.claimed_by)): str(task.claimed_by) for task in processing}
    rows = fetch(connection, SESSIONS, {"names": list(worker_ids)}) if worker_ids else []
    return {worker_ids[row.pop("application_name")]: WorkerSession(**row) for row in rows}


def _errors(tasks: list[Task]) -> dict[int, tuple[str, str]]:
    """The class of the last exception of each FAILED or READY task, and the worker that met it."""
    ids = [task.pk for task in tasks if task.status in (TaskStatus.FAILED, TaskStatus.READY)]
    rows = fetch(connection, ERRORS, {"ids": ids}) if ids else []
    return {row["task_id"]: (row["exception_class"], row["worker_id"]) for row in rows}


def _cancellers(tasks: list[Task]) -> dict[int, str]:
    targets = {audit.task(task.pk): task.pk for task in tasks if task.status == TaskStatus.CANCELLED}
    rows = fetch(connection, CANCELLERS, {"targets": list(targets)}) if targets else []
    return {targets[row["target"]]: row["actor"] for row in rows}
