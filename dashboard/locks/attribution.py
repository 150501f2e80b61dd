"""The work behind each session: its task, the rows it holds, its lab run.

`lock_page` puts it together with the tree. It needs no connection pool of its own. However many tabs ask, each process
queries once a second, in at most one session, with timeouts (dashboard/live/snapshots.py). What a locked table would
say is left out (dashboard/locks/limits.py).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from django.apps import apps
from django.db import connection as default_connection
from django.db import models
from django.utils.functional import cached_property

from dashboard.locks import activity
from dashboard.locks.activity import Activity
from dashboard.locks.limits import Names, Unavailable
from dashboard.locks.tree import RowRef, Session, TreeLine, tree_lines
from dashboard.models import LabRun
from tasks import panels
from tasks.exceptions import RowlockError
from tasks.locking import rowlocks
from tasks.locking.rowlocks import RowLock
from tasks.models import Task
from tasks.panels import Snapshot
from tasks.support.database import fetch

NEXT_READY = NEWEST = 200
PROCESSING_CAP = 500


class UnknownTable(RowlockError):
    """No model has this table."""


@dataclass(frozen=True)
class HeldRow(RowRef):
    """One row and the lock on it; `pid` is None if the holder is uncertain."""

    pid: int | None
    lock: RowLock


def watched_rows_held(names: Names, table: str | None = None, ids: Iterable[int] = ()) -> list[HeldRow]:
    """Locked rows among PROCESSING tasks, the next READY ones, the newest of watched models, and `ids` of `table`.

    It checks some hundreds of rows of each, never a whole table. Raises UnknownTable.
    """
    panels.load()
    watched: dict[type[models.Model], list[Callable[[], Iterable[int]]]] = {
        Task: [_watched_tasks],
        **{one.model: [partial(_newest, one.model)] for one in panels.WATCHED},
    }
    if table is not None:  # its name goes into SQL, so it comes from a model only
        known = {model._meta.db_table: model for model in apps.get_models()}
        if table not in known:
            raise UnknownTable(f"No model has the table {table!r}. Known are: {', '.join(sorted(known))}.")
        watched.setdefault(known[table], []).append(lambda: ids)

    def held_among(model: type[models.Model]) -> list[HeldRow]:
        return held(model, [key for keys in watched[model] for key in keys()])

    return [row for model in watched for row in names.ask(partial(held_among, model), model._meta.db_table) or []]


def held(model: type[models.Model], ids: Iterable[int]) -> list[HeldRow]:
    """The locked rows among `ids` of `model`, one entry per holder."""
    return [
        HeldRow(model, key, pid, lock)
        for key, lock in sorted(rowlocks.lockers(model, ids).items())
        for pid in ([locker.pid for locker in lock.lockers] or [None])
    ]


def _watched_tasks() -> list[int]:
    # Each query follows the order of an index, so that it reads the index and not the table.
    ready = Task.objects.ready()
    unkeyed = ready.filter(ordering_key__isnull=True, concurrency_key__isnull=True)
    unkeyed = unkeyed.order_by("queue_name", "-priority", "run_after", "id")
    keyed = ready.filter(ordering_key__isnull=False).order_by("ordering_key", "id")
    limited = ready.filter(concurrency_key__isnull=False)
    limited = limited.order_by("concurrency_key", "queue_name", "priority", "run_after", "id")
    processing = Task.objects.processing()[:PROCESSING_CAP]
    watched = (processing, unkeyed[:NEXT_READY], keyed[:NEXT_READY], limited[:NEXT_READY])
    return [key for tasks in watched for key in tasks.values_list("pk", flat=True)]


def _newest(model: type[models.Model]) -> list[int]:
    return list(model._default_manager.order_by("-pk").values_list("pk", flat=True)[:NEWEST])


ROWS_SHOWN = 5
LAB_RUNS = 20

RUNNING = """
SELECT worker.id AS worker_id, task.id, task.task_path, task.status, task.attempt, task.max_attempts,
    task.traceparent, task.id IS NOT DISTINCT FROM worker.current_task_id AS is_current,
    extract(epoch FROM clock_timestamp() - CASE WHEN task.id = worker.current_task_id THEN worker.current_since
        ELSE task.started_at END)::float8 AS seconds
FROM tasks_worker AS worker
CROSS JOIN LATERAL (SELECT worker.current_task_id AS id UNION SELECT unnest(worker.running_ids)) AS running
JOIN tasks_task AS task ON task.id = running.id
WHERE worker.stopped_at IS NULL
ORDER BY is_current DESC LIMIT 2000
"""


@dataclass(frozen=True)
class RunningTask:
    """A task that a worker runs, and perhaps its current one; `seconds` since it began."""

    worker_id: str
    id: int
    task_path: str
    status: str
    attempt: int
    max_attempts: int
    seconds: float | None
    traceparent: str | None = None
    is_current: bool = True

    @property
    def has_attempts_left(self) -> bool:
        return self.attempt < self.max_attempts


@dataclass(frozen=True)
class Behind:
    """The task, held rows and lab run of one session; `more` counts the rows not in `rows`."""

    task: RunningTask | None = None
    rows: tuple[RowRef, ...] = ()
    more: int = 0
    lab_run: int | None = None
    traceparent: str = ""


def behind(
    seen: Activity,
    held: Iterable[HeldRow],
    tasks: Mapping[str | int, RunningTask],
    lab_runs: Mapping[str, int] = MappingProxyType({}),
) -> dict[int, Behind]:
    """The work behind each session, for the sessions that have some.

    `tasks`: from `running_tasks`; `lab_runs`: ids of runs, by the name of their sessions.
    """
    rows = rows_by_pid(seen, held)
    found = {}
    for session in seen.sessions:
        owner = session.identity.party or session.identity
        task = task_behind(session, tasks)
        traceparent = session.traceparent or (task.traceparent if task else "") or ""
        lab_run = lab_runs.get(owner.name) if owner.kind == "lab" else None
        if task or lab_run or traceparent or session.pid in rows:
            refs = rows.get(session.pid, [])
            more = max(0, len(refs) - ROWS_SHOWN)
            found[session.pid] = Behind(task, tuple(refs[:ROWS_SHOWN]), more, lab_run, traceparent)
    return found


def task_behind(session: Session, tasks: Mapping[str | int, RunningTask]) -> RunningTask | None:
    """The task that the session's statement names; else the current one of its worker."""
    owner = session.identity.party or session.identity
    if owner.kind != "worker":
        return None
    return tasks.get(owner.name if session.task_id is None else session.task_id)


def running_lab_runs(names: Names) -> dict[str, int]:
    """Running lab runs by their schema, which is also the name of their sessions."""
    runs = LabRun.objects.exclude(schema="").order_by("-pk").values_list("schema", "pk")[:LAB_RUNS]
    return names.ask(lambda: dict(runs), LabRun._meta.db_table) or {}


def running_tasks(names: Names) -> dict[str | int, RunningTask]:
    """The tasks of live workers by their id, and the current one of each worker by the worker's id."""
    rows = names.ask(partial(fetch, names.connection, RUNNING), "tasks_task", "tasks_worker") or []
    tasks = [RunningTask(**row) for row in rows]
    return {task.id: task for task in tasks} | {task.worker_id: task for task in tasks if task.is_current}


@dataclass(frozen=True)
class TableNames:
    """Names from tables: held rows, running tasks, lab runs by session; and the tables that cannot be read."""

    held: tuple[HeldRow, ...]
    tasks: Mapping[str | int, RunningTask]
    lab_runs: Mapping[str, int] = field(default_factory=dict)
    unavailable: frozenset[Unavailable] = frozenset()


def read_names(table: str | None = None, ids: Iterable[int] = (), *, with_lab: bool = False) -> TableNames:
    """Ask every table for its names; `table` and `ids` as in `watched_rows_held`."""
    names = Names(default_connection)
    held, tasks = watched_rows_held(names, table, ids), running_tasks(names)
    lab_runs = running_lab_runs(names) if with_lab else {}
    others = names.locked(model._meta.db_table for model in apps.get_models())
    return TableNames(tuple(held), tasks, lab_runs, frozenset(names.unavailable | others))


def read_names_with_lab() -> TableNames:
    return read_names(with_lab=True)


def rows_by_pid(seen: Activity, held: Iterable[HeldRow]) -> dict[int, list[RowRef]]:
    """The rows that each session holds: first those that others wait for, then those that operators watch."""
    rows: dict[int, list[RowRef]] = defaultdict(list)
    for lock in seen.locks:
        if lock.row and not lock.granted and lock.locktype == "transactionid":
            for pid in seen.by_pid[lock.pid].blocked_by if lock.pid in seen.by_pid else ():
                rows[pid].append(lock.row)
    for row in held:
        if row.pid is not None and row.lock.is_exclusive:
            rows[row.pid].append(RowRef(row.model, row.id))
    return {pid: list(dict.fromkeys(refs)) for pid, refs in rows.items()}


GRANTS = """
SELECT quote_ident(current_user) AS role, pg_has_role('pg_read_all_stats', 'USAGE') AS sees_all,
    pg_has_role('pg_signal_backend', 'USAGE') AS may_signal
"""


@dataclass(frozen=True)
class LockPage:
    """Everything that the lock page shows, at one moment; `grants`: the rights of the dashboard's own role."""

    seen: Activity
    held: tuple[HeldRow, ...]
    behind: Mapping[int, Behind]
    grants: dict[str, Any]
    unavailable: tuple[Unavailable, ...] = ()

    @cached_property
    def lines(self) -> list[TreeLine]:
        return tree_lines(self.seen.roots)

    @property
    def longest_wait(self) -> float | None:
        """The longest current wait, in seconds."""
        return max((lock.wait_seconds for lock in self.seen.locks if lock.wait_seconds is not None), default=None)

    @cached_property
    def not_shown(self) -> int:
        """The number of sessions in the tree beyond the last line shown."""
        return sum(1 + root.victims for root in self.seen.roots) - len(self.lines)

    @cached_property
    def bystanders(self) -> set[int]:
        """Pids of sessions outside the tree."""
        return {session.pid for session in self.seen.sessions} - {line.node.session.pid for line in self.lines}


def lock_page(snapshot: Snapshot) -> LockPage:
    """The locks of a shared snapshot; runs only the queries that the snapshot has not run."""
    seen = snapshot.once(activity.read)
    is_lab_at_work = any("lab" in session.identity.kinds for session in seen.sessions)
    names = snapshot.once(read_names_with_lab if is_lab_at_work else read_names)
    work = behind(seen, names.held, names.tasks, names.lab_runs)
    unavailable = by_table(seen.unavailable | names.unavailable)
    return LockPage(seen, names.held, work, snapshot.once(grants), unavailable)


def by_table(unavailable: Iterable[Unavailable]) -> tuple[Unavailable, ...]:
    """Each table once, those with names that are missing first."""
    found = {missing.table: missing for missing in sorted(unavailable, key=lambda missing: missing.is_needed)}
    return tuple(sorted(found.values(), key=lambda missing: (not missing.is_needed, missing.table)))


def grants() -> dict[str, Any]:
    return fetch(default_connection, GRANTS)[0]
