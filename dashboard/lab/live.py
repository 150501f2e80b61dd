"""The run that is at work, as of this moment: its counters, and its sessions, rows and waits as the lock page has them.

It is the look of the lock page with the run's schema as the search path: then tables, named locks and workers are those
of the run, and the same code tells which row is waited for and by whom it is held.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from django.db import DatabaseError, connection
from django.db.models import QuerySet
from django.utils.functional import cached_property

from dashboard.lab import spans, waits
from dashboard.lab.patterns import PATTERNS
from dashboard.lab.spans import Span
from dashboard.locks import activity, held_rows
from dashboard.locks.activity import Activity, Session
from dashboard.locks.behind import ROWS_SHOWN, Behind, rows_by_pid
from dashboard.locks.held_rows import HeldRow
from dashboard.locks.limits import limited
from dashboard.locks.sessions import RowRef
from dashboard.locks.tree import Line, build_tree, lines
from dashboard.models import LabRun
from orders.models import Account, Order
from tasks.database import fetch
from tasks.models import Task

MOST_ROWS = 200  # of which it is asked who holds them
NOW_SEEN = "SELECT current_setting('search_path') AS path"
SEE = "SELECT set_config('search_path', %(path)s::text, true)"
COUNTERS = """
SELECT count(*) FILTER (WHERE kind = 'effect')::int AS effects,
    count(DISTINCT item) FILTER (WHERE kind = 'effect')::int AS processed,
    count(*) FILTER (WHERE kind = 'lost')::int AS thrown_away, count(*) FILTER (WHERE kind = 'kill')::int AS kills,
    coalesce(extract(epoch FROM clock_timestamp() - min(began)), 0)::float8 AS seconds
FROM lab_ledger WHERE kind <> 'session'
"""
# The rows that a pattern is on or comes to next.
NEXT: dict[str, Callable[[], "QuerySet[Order] | QuerySet[Task] | QuerySet[Account]"]] = {
    "orders": lambda: Order.objects.to_mail().order_by("pk"),
    "tasks": lambda: Task.objects.unfinished().order_by("pk"),
    "accounts": lambda: Account.objects.order_by("pk"),
}


class CopiedRow(RowRef):
    """A row of a run's own: its number says nothing about the live row of that number."""

    @property
    def url(self) -> str:
        return ""


@dataclass(frozen=True)
class Counters:
    """What the ledger says so far; `seconds` since its first line."""

    effects: int
    processed: int
    thrown_away: int
    kills: int
    seconds: float

    @property
    def duplicates(self) -> int:
        return self.effects - self.processed

    @property
    def items_per_second(self) -> float:
        return self.processed / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class LiveRun:
    """One look at a run: facts, no words. `workers` are the numbers of its processes by session, below 0 outsiders."""

    schema: str
    counters: Counters
    seen: Activity
    held: tuple[HeldRow, ...]
    workers: Mapping[int, int]
    spans: tuple[Span, ...]

    def members(self) -> set[int]:
        """The pids of the run's sessions, and of those that hold them up or wait behind them."""
        own = {
            session.pid
            for session in self.seen.sessions
            if session.pid in self.workers or (session.identity.name == self.schema and session.blocked_by)
        }
        return connected(own, self.seen.sessions)


@dataclass(frozen=True)
class LivePage:
    """The same as one reader sees it, in the reader's language."""

    run: LiveRun

    @cached_property
    def sessions(self) -> list[Session]:
        """Each under the name of its worker."""
        by_pid = self.run.seen.by_pid
        return [self._named(by_pid[pid]) for pid in sorted(self.run.members()) if pid in by_pid]

    def _named(self, session: Session) -> Session:
        number = self.run.workers.get(session.pid)
        return session if number is None else replace(session, label=waits.worker_name(number))

    @cached_property
    def lines(self) -> list[Line]:
        """The tree of who waits for whom."""
        return lines(build_tree(self.sessions, self.run.seen.locks))

    @cached_property
    def behind(self) -> dict[int, Behind]:
        """The rows that each session holds."""
        rows = rows_by_pid(self.run.seen, self.run.held)
        shown = {pid: tuple(CopiedRow(row.model, row.id) for row in refs[:ROWS_SHOWN]) for pid, refs in rows.items()}
        return {pid: Behind(rows=refs, more=len(rows[pid]) - len(refs)) for pid, refs in shown.items()}

    @cached_property
    def busy(self) -> list[Session]:
        """The workers that go on: in a transaction or a statement, and not waiting for a lock; by number."""
        busy = [
            session for session in self.sessions if session.label and session.state != "idle" and not session.blocked_by
        ]
        return sorted(busy, key=lambda session: self.run.workers[session.pid])

    @cached_property
    def waiting(self) -> int:
        return sum(bool(session.blocked_by) for session in self.sessions)


def connected(pids: set[int], sessions: tuple[Session, ...]) -> set[int]:
    """The sessions that those wait for or keep waiting, and so on."""
    found, grown = set(pids), True
    while grown:
        size = len(found)
        for session in sessions:
            if session.pid in found:
                found.update(session.blocked_by)
            elif found.intersection(session.blocked_by):
                found.add(session.pid)
        grown = len(found) > size
    return found


@contextmanager
def seeing(schema: str) -> Iterator[None]:
    """Within a transaction: its statements see this schema alone."""
    [before] = fetch(connection, NOW_SEEN)
    fetch(connection, SEE, {"path": schema})
    yield
    fetch(connection, SEE, before)


def look() -> LiveRun | None:
    """The run that is at work on this database; None when there is none, or when it ends at this very moment."""
    run = LabRun.objects.filter(state=LabRun.State.RUNNING).exclude(schema="").order_by("-pk").first()
    if run is None or run.pattern not in PATTERNS:
        return None
    try:
        with limited(connection), seeing(run.schema):
            return _look(run)
    except DatabaseError as error:
        if getattr(error.__cause__, "sqlstate", None) in GONE:
            return None
        raise


GONE = ("42P01", "3F000", "42883", "55P03")  # no such table, schema or function any more, or it is being dropped


def _look(run: LabRun) -> LiveRun:
    subject = PATTERNS[run.pattern].subject
    [counters] = fetch(connection, COUNTERS)
    workers = {row["pid"]: row["worker"] for row in fetch(connection, waits.WORKERS)}
    rows = NEXT[subject]()[:MOST_ROWS] if subject in NEXT else Task.objects.none()
    held = held_rows.held(rows.model, [row.pk for row in rows.only("pk")])
    drawn = spans.latest(connection, has_attempts=subject == "accounts")
    return LiveRun(run.schema, Counters(**counters), activity.look(), tuple(held), workers, tuple(drawn))
