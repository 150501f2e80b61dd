"""PROCESSING tasks whose worker is dead or silent, by worker, with the evidence."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from typing import Self

from django.db import connection
from django.db.models import Q
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from dashboard import links
from dashboard.task_pages.actions import PAGE_ACTIONS, PageAction, Seen
from dashboard.templatetags.rowlock import age
from tasks import operations
from tasks.diagnosis import Facts, Verdict, WorkerSession, decide, gather
from tasks.diagnosis.decision import death, recovery_of, silent
from tasks.diagnosis.finding import OF_LIFE, command, locked_by
from tasks.locking import rowlocks
from tasks.models import Queue, Task, TaskQuerySet
from tasks.operations.filters import Params, given, parse_id
from tasks.queue import presence
from tasks.queue.presence import Life, WorkerState
from tasks.support.audit import Who
from tasks.support.database import fetch

PAGE = 50
COUNT_CAP = 10_000
GONE = (Life.DEAD, Life.MISSING, Life.SILENT, Life.RESTARTED)

# Uses the index on claimed_by of PROCESSING rows, and stops at the cap.
COUNTS = """
SELECT holder.id AS worker_id, held.number
FROM unnest(%(ids)s::text[]) AS holder (id) CROSS JOIN LATERAL (
    SELECT count(*) AS number FROM (
        SELECT FROM tasks_task WHERE status = 'PROCESSING' AND claimed_by = holder.id LIMIT %(cap)s::int) AS capped
) AS held
WHERE held.number > 0
"""


@dataclass(frozen=True)
class Cursor:
    """Start of the page: after this task of this worker; an empty `worker_id` means the first page."""

    worker_id: str = ""
    task_id: int = 0

    @classmethod
    def from_params(cls, params: Params) -> Self:
        """Read `worker` and `after`; raises InvalidFilter."""
        worker, after = given(params, "worker"), given(params, "after")
        return cls(worker[0], parse_id(after[0])) if worker and after else cls()


@dataclass(frozen=True)
class Row:
    """One stale task, in texts that the page prints as they are.

    `effect` says if the worker had begun it and if its effects may repeat; `seen` is its value in the form.
    """

    id: str
    version: str
    path: str
    name: str
    queue: str
    attempts: str
    verdict: str
    label: str
    recovery: str
    asks: bool
    claimed: SafeString | str
    effect: str
    seen: str
    action: PageAction
    command: str


@dataclass(frozen=True)
class Group:
    """Tasks that one gone worker still holds: `number` in all, `rows` on this page."""

    worker: WorkerState
    number: int
    evidence: str
    session: WorkerSession | None
    rows: list[Row]

    @property
    def key(self) -> str:
        """The worker's id as an HTML id."""
        return links.element_id(self.worker.id)

    @property
    def is_capped(self) -> bool:
        return self.number >= COUNT_CAP

    @property
    def is_dead(self) -> bool:
        """True if its tasks may be recovered; for a missing worker recovery checks again."""
        return self.worker.life in (Life.DEAD, Life.MISSING)

    @property
    def label(self) -> str:
        """The verdict on its tasks."""
        return str(OF_LIFE[self.worker.life].label)


@dataclass(frozen=True)
class Restart:
    """A recent restart of the database ended every worker's session at once; recovery waits `until`."""

    seconds_ago: float
    until: datetime
    waiting: int


@dataclass(frozen=True)
class Stale:
    """One page of the stale tasks. `numbers`: tasks by worker, counted up to COUNT_CAP."""

    now: datetime
    groups: list[Group]
    numbers: dict[str, int]
    dead: list[str]
    next_cursor: Cursor | None = None
    restart: Restart | None = None
    has_live_worker: bool = True

    @property
    def total(self) -> int:
        return sum(self.numbers.values())

    @property
    def takeable(self) -> int:
        """The number of tasks that dead workers hold."""
        return sum(self.numbers[worker_id] for worker_id in self.dead)


def page_after(cursor: Cursor, *, limit: int = PAGE) -> Stale:
    """The stale tasks after `cursor`; about fifteen statements, however many tasks there are."""
    states = presence.states()
    gone = {state.id: state for state in states.values() if state.life in GONE}
    numbers = held_by(gone)
    found = list(tasks_after(numbers, cursor)[: limit + 1])
    facts = gather(found[:limit])
    return Stale(
        now=facts.now,
        groups=groups_of(found[:limit], gone, numbers, facts),
        numbers=numbers,
        dead=[worker_id for worker_id in numbers if gone[worker_id].life in (Life.DEAD, Life.MISSING)],
        next_cursor=Cursor(found[limit - 1].claimed_by or "", found[limit - 1].pk) if len(found) > limit else None,
        restart=restart_of(list(states.values()), facts.now),
        has_live_worker=any(state.is_alive for state in states.values()),
    )


def held_by(worker_ids: Iterable[str]) -> dict[str, int]:
    """PROCESSING tasks of each worker, counted up to COUNT_CAP; workers without tasks are left out."""
    rows = fetch(connection, COUNTS, {"ids": sorted(worker_ids), "cap": COUNT_CAP})
    return {row["worker_id"]: row["number"] for row in rows}


def tasks_after(worker_ids: Iterable[str], cursor: Cursor) -> TaskQuerySet:
    """The tasks of these workers after `cursor`, worker by worker."""
    tasks = Task.objects.processing().filter(claimed_by__in=list(worker_ids)).order_by("claimed_by", "pk")
    beyond = Q(claimed_by__gt=cursor.worker_id) | Q(claimed_by=cursor.worker_id, pk__gt=cursor.task_id)
    return tasks.filter(beyond) if cursor.worker_id else tasks


def groups_of(tasks: list[Task], gone: dict[str, WorkerState], numbers: dict[str, int], facts: Facts) -> list[Group]:
    """Group the tasks by worker, in their given order."""
    groups = []
    for worker_id, held in groupby(tasks, key=lambda task: task.claimed_by or ""):
        ours, worker = list(held), facts.workers.get(worker_id, gone[worker_id])
        is_silent = worker.life in (Life.SILENT, Life.RESTARTED)
        evidence = silent(worker).sentence if is_silent else death(ours[0], worker, facts)
        rows = [row_of(task, worker, facts) for task in ours]
        groups.append(Group(worker, numbers[worker_id], evidence, facts.sessions.get(worker_id), rows))
    return groups


def row_of(task: Task, worker: WorkerState, facts: Facts) -> Row:
    finding = decide(task, facts)
    queue = facts.queues.get(task.queue_name)
    is_dead = finding.verdict is Verdict.WORKER_DEAD
    action = PAGE_ACTIONS["recover" if is_dead else "requeue"]
    return Row(
        id=str(task.pk),
        version=str(task.version),
        path=task.task_path,
        name=task.task_path.rpartition(".")[2],
        queue=task.queue_name,
        attempts=f"{task.attempt}/{task.max_attempts}",
        verdict=finding.verdict.value,
        label=str(finding.verdict.label),
        recovery=recovery_of(task, facts) if is_dead else finding.sentence,
        asks=queue is not None and queue.recovery == Queue.Recovery.ASK,
        claimed=age(task.started_at, facts.now),
        effect=f"{progress_of(task, worker)} {action.repeats(task, finding)}",
        seen=str(Seen.of(task)),
        action=action,
        command=command("requeue_tasks", str(task.pk)),
    )


def progress_of(task: Task, worker: WorkerState) -> str:
    """Say if its worker had begun it. A worker publishes its current task only after a quarter of a second."""
    if worker.runs(task.pk):
        return _("Its worker had begun it.")
    if worker.current_task_id is not None:
        return _("Its worker ran #%(id)d and had not begun this one.") % {"id": worker.current_task_id}
    return _("Its worker did not report if it had begun.")


def restart_of(states: list[WorkerState], now: datetime) -> Restart | None:
    """The restart whose grace period still runs, or None."""
    left = max((state.grace_seconds for state in states), default=0.0)
    if left <= 0:
        return None
    away = [state for state in states if state.life in (Life.RESTARTED, Life.SILENT)]
    return Restart(min(state.epoch_age_seconds for state in states), now + timedelta(seconds=left), len(away))


MOST = 100_000  # tasks per call: each takes eight bytes of memory and one intervention

HOLDINGS = """
SELECT claimed_by AS worker_id, queue_name, count(*) AS number,
    count(*) FILTER (WHERE attempt >= max_attempts) AS spent,
    coalesce(max((SELECT recovery FROM tasks_queue WHERE name = queue_name)), 'automatic') AS recovery
FROM (SELECT claimed_by, queue_name, attempt, max_attempts FROM tasks_task
      WHERE status = 'PROCESSING' AND claimed_by = ANY(%(ids)s::text[]) LIMIT %(most)s::int) AS held
GROUP BY claimed_by, queue_name ORDER BY claimed_by, queue_name
"""

HELD = """
SELECT id FROM tasks_task
WHERE status = 'PROCESSING' AND claimed_by = ANY(%(ids)s::text[]) LIMIT %(most)s::int
"""


@dataclass(frozen=True)
class Holding:
    """One worker's tasks of one queue; `spent`: those without attempts left, which become FAILED."""

    worker: WorkerState
    queue_name: str
    number: int
    spent: int
    recovery: str

    @property
    def asks(self) -> bool:
        return self.recovery == Queue.Recovery.ASK


@dataclass(frozen=True)
class Holdings:
    holdings: list[Holding]
    has_live_worker: bool

    @property
    def number(self) -> int:
        return sum(holding.number for holding in self.holdings)


def preview(worker_ids: list[str]) -> Holdings:
    """The tasks that these workers hold, by worker and queue."""
    rows = fetch(connection, HOLDINGS, {"ids": worker_ids, "most": MOST})
    states = presence.states({*presence.shown_ids(connection), *worker_ids})
    holdings = [Holding(states[row.pop("worker_id")], **row) for row in rows]
    return Holdings(holdings, any(state.is_alive for state in states.values()))


@dataclass(frozen=True)
class Taken:
    """The recovered tasks with their new status, the number of tasks left, and why locked ones were, by id."""

    done: dict[int, str] = field(default_factory=dict)
    left: int = 0
    locked: dict[int, str] = field(default_factory=dict)


def take_back(worker_ids: list[str], who: Who, *, reason: str = "") -> Taken:
    """Recover the tasks of those workers that are dead. Each task gets an intervention."""
    ids = [row["id"] for row in fetch(connection, HELD, {"ids": worker_ids, "most": MOST})]
    if not ids:
        return Taken()
    sweep = operations.recover(who, task_ids=ids, reason=reason)
    left = sorted(set(ids) - {row["id"] for row in sweep.rows})
    lockers = rowlocks.lockers(Task, left[:PAGE], connection)
    locked = {task_id: locked_by(lock) for task_id, lock in lockers.items() if lock.is_exclusive}
    return Taken({row["id"]: row["status"] for row in sweep.rows}, len(left), locked)
