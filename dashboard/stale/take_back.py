"""Recover all tasks that some dead workers hold, after a preview."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from django.db import connection

from tasks import actions, presence
from tasks.audit import Who
from tasks.database import fetch
from tasks.models import Queue
from tasks.presence import WorkerState

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
    """One worker's tasks of one queue; `spent`: tasks without attempts left, which become FAILED."""

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

    @property
    def spent(self) -> int:
        return sum(holding.spent for holding in self.holdings)


@dataclass(frozen=True)
class Outcome:
    """Recovered tasks by their new status, and the number of tasks left."""

    by_status: dict[str, int]
    left: int

    @property
    def taken(self) -> int:
        return sum(self.by_status.values())


def look(worker_ids: Iterable[str]) -> Holdings:
    ids = list(worker_ids)
    rows = fetch(connection, HOLDINGS, {"ids": ids, "most": MOST})
    states = presence.states(set(presence.known_ids(connection)) | set(ids))
    holdings = [Holding(states[row.pop("worker_id")], **row) for row in rows]
    return Holdings(holdings, any(state.is_alive for state in states.values()))


def take_back(worker_ids: Iterable[str], who: Who, *, reason: str = "") -> Outcome:
    """Recover the tasks of those workers that are dead. Each task gets an intervention."""
    ids = [row["id"] for row in fetch(connection, HELD, {"ids": list(worker_ids), "most": MOST})]
    if not ids:
        return Outcome({}, 0)
    sweep = actions.recover(who, task_ids=ids, reason=reason)
    return Outcome(dict(Counter(row["status"] for row in sweep.rows)), len(ids) - len(sweep.rows))
