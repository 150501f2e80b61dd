"""The overview's parts, and the counts in every page's navigation; a part is left out if its query times out."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar

from django.db import OperationalError, connection
from django.http import HttpRequest

from dashboard import links
from dashboard.attention import inbox
from dashboard.attention.failures import Group, latest_failures
from dashboard.attention.inbox import Inbox, is_too_slow
from dashboard.attention.queues import COUNT_CAP, LATE_SECONDS, numbers
from dashboard.live import snapshot
from dashboard.locks import activity
from tasks.diagnosis import stats
from tasks.diagnosis.stats import Numbers, QueueNumbers
from tasks.panels import Figure, Look
from tasks.support.database import fetch

BLOCKED = """
SELECT count(*) AS blocked FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND wait_event_type = 'Lock'
"""


class Counts(NamedTuple):
    """Stale tasks, and sessions that wait for a lock."""

    stuck: int = 0
    blocked: int = 0


def counts() -> Counts:
    return Counts(stats.stuck(cap=COUNT_CAP), fetch(connection, BLOCKED)[0]["blocked"])


def of(request: HttpRequest) -> Counts:
    """Take the counts from data that this request already has, else query them; zeros on a timeout."""
    look = snapshot.of(request)
    if look.knows(numbers) and look.knows(activity.read):
        return Counts(sum(queue.stale for queue in look.once(numbers).queues), len(look.once(activity.read).blocked))
    try:
        return look.once(counts)
    except OperationalError as error:
        if not is_too_slow(error):
            raise
        return Counts()


QUEUES_SHOWN = 100
SEE_QUEUES, SEE_TASKS = "tasks.view_queue", "tasks.view_task"

T = TypeVar("T")


@dataclass(frozen=True)
class QueueRow:
    """One line of the table of queues."""

    numbers: QueueNumbers
    workers: int

    @property
    def name(self) -> str:
        return self.numbers.name

    @property
    def key(self) -> str:
        """A stable name for the page's element."""
        return sha256(self.name.encode()).hexdigest()[:12]

    @property
    def is_unserved(self) -> bool:
        return bool(self.numbers.ready and not self.workers and not self.numbers.paused)

    @property
    def is_late(self) -> bool:
        return (self.numbers.oldest_ready_seconds or 0) > LATE_SECONDS and not self.numbers.paused

    @property
    def ready_url(self) -> str:
        return links.tasks(statuses=("READY",), queue_names=(self.name,))

    @property
    def processing_url(self) -> str:
        return links.tasks(statuses=("PROCESSING",), queue_names=(self.name,))

    @property
    def failed_url(self) -> str:
        return links.tasks(statuses=("FAILED",), queue_names=(self.name,))

    @property
    def completed_url(self) -> str:
        return links.tasks(statuses=("COMPLETED",), queue_names=(self.name,))

    @property
    def stale_url(self) -> str:
        return links.page("admin:ops_stale", queue=self.name)

    @property
    def workers_url(self) -> str:
        return links.page("admin:ops_workers")

    @property
    def why_url(self) -> str:
        """Link to the page that explains why its tasks do not run; empty if there is nothing to explain."""
        return links.page("admin:tasks_task_why", self.name) if self.numbers.ready or self.numbers.processing else ""

    @property
    def rank(self) -> tuple[bool, bool, bool, str]:
        """Sort key: queues in trouble first, quiet ones last."""
        busy = self.numbers.ready or self.numbers.processing or self.numbers.scheduled
        return (not (self.is_unserved or self.numbers.stale), not self.numbers.failed, not busy, self.name)


@dataclass(frozen=True)
class Overview:
    """The whole page. A part is None if the person may not see it or its query timed out."""

    now: datetime
    inbox: Inbox
    figures: list[Figure]
    queues: list[QueueRow] | None
    failures: list[Group] | None
    hidden_queues: int = 0
    is_capped: bool = False  # some count of the queues stopped at its cap


def gather(look: Look, user: Any) -> Overview:
    """Collect the parts that this person may see."""
    found = told(look, numbers) if user.has_perm(SEE_TASKS) else None
    rows = None if found is None else queue_rows(found)
    return Overview(
        now=look.now,
        inbox=inbox.gather(look, user.has_perm),
        figures=inbox.figures(look, user.has_perm),
        queues=None if rows is None else rows[:QUEUES_SHOWN],
        failures=told(look, latest_failures) if user.has_perm(SEE_TASKS) else None,
        hidden_queues=max(0, len(rows or ()) - QUEUES_SHOWN),
        is_capped=found is not None and is_capped(found),
    )


def is_capped(found: Numbers) -> bool:
    """True if a count stopped at its cap. Some statements share one cap among all queues."""
    totals = (
        sum(queue.ready + queue.scheduled for queue in found.queues),
        sum(queue.processing for queue in found.queues),
        sum(queue.failed for queue in found.queues),
    )
    return max(totals) >= COUNT_CAP


def queue_rows(found: Numbers) -> list[QueueRow]:
    rows = [QueueRow(queue, len(found.servers(queue.name))) for queue in found.queues]
    return sorted(rows, key=lambda row: row.rank)


def told(look: Look, ask: Callable[[], T]) -> T | None:
    """The answer, or None if its query timed out."""
    try:
        return look.once(ask)
    except OperationalError as error:
        if not is_too_slow(error):
            raise
        return None
