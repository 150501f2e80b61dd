"""The running run at this moment: its counters, sessions, rows and waits.

It uses the code of the lock page with the run's schema as the search path. So tables, named locks and workers are those
of the run.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from django.db import DatabaseError, connection
from django.db.models import QuerySet
from django.utils.functional import cached_property

from dashboard.lab import measure
from dashboard.lab.measure import Span
from dashboard.lab.patterns import PATTERNS
from dashboard.locks import activity, attribution
from dashboard.locks.activity import Activity, limited
from dashboard.locks.attribution import ROWS_SHOWN, Behind, HeldRow, rows_by_pid
from dashboard.locks.tree import RowRef, Session, TreeLine, build_tree, tree_lines
from dashboard.models import LabRun
from orders.models import Account, Order
from tasks.models import Task
from tasks.support.database import fetch

MOST_ROWS = 200  # rows whose holders are checked
NOW_SEEN = "SELECT current_setting('search_path') AS path"
SEE = "SELECT set_config('search_path', %(path)s::text, true)"
COUNTERS = """
SELECT count(*) FILTER (WHERE kind = 'effect')::int AS effects,
    count(DISTINCT item) FILTER (WHERE kind = 'effect')::int AS processed,
    count(*) FILTER (WHERE kind = 'lost')::int AS thrown_away, count(*) FILTER (WHERE kind = 'kill')::int AS kills,
    coalesce(extract(epoch FROM clock_timestamp() - min(began)), 0)::float8 AS seconds
FROM lab_ledger WHERE kind <> 'session'
"""
# The rows that a pattern works on now or next.
NEXT: dict[str, Callable[[], "QuerySet[Order] | QuerySet[Task] | QuerySet[Account]"]] = {
    "orders": lambda: Order.objects.to_mail().order_by("pk"),
    "tasks": lambda: Task.objects.unfinished().order_by("pk"),
    "accounts": lambda: Account.objects.order_by("pk"),
}


class CopiedRow(RowRef):
    """A row of a run's schema: the live row with the same id is another one."""

    @property
    def url(self) -> str:
        return ""


@dataclass(frozen=True)
class Counters:
    """The ledger's counts so far; `seconds` since its first line."""

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
    """One snapshot of a run without translated text. `workers`: process numbers by pid, below 0 for outside lockers."""

    schema: str
    counters: Counters
    seen: Activity
    held: tuple[HeldRow, ...]
    workers: Mapping[int, int]
    spans: tuple[Span, ...]

    def members(self) -> set[int]:
        """The pids of the run's sessions, and of sessions that block them or wait for them."""
        own = {
            session.pid
            for session in self.seen.sessions
            if session.pid in self.workers or (session.identity.name == self.schema and session.blocked_by)
        }
        return connected(own, self.seen.sessions)


@dataclass(frozen=True)
class LivePage:
    """The snapshot for one reader, in the reader's language."""

    run: LiveRun

    @cached_property
    def sessions(self) -> list[Session]:
        """The sessions, each labelled with its worker's name."""
        by_pid = self.run.seen.by_pid
        return [self._named(by_pid[pid]) for pid in sorted(self.run.members()) if pid in by_pid]

    def _named(self, session: Session) -> Session:
        number = self.run.workers.get(session.pid)
        return session if number is None else replace(session, label=measure.worker_name(number))

    @cached_property
    def lines(self) -> list[TreeLine]:
        return tree_lines(build_tree(self.sessions, self.run.seen.locks))

    @cached_property
    def behind(self) -> dict[int, Behind]:
        rows = rows_by_pid(self.run.seen, self.run.held)
        shown = {pid: tuple(CopiedRow(row.model, row.id) for row in refs[:ROWS_SHOWN]) for pid, refs in rows.items()}
        return {pid: Behind(rows=refs, more=len(rows[pid]) - len(refs)) for pid, refs in shown.items()}

    @cached_property
    def busy(self) -> list[Session]:
        """Workers that progress: in a transaction or a statement, without waiting for a lock; by number."""
        busy = [
            session for session in self.sessions if session.label and session.state != "idle" and not session.blocked_by
        ]
        return sorted(busy, key=lambda session: self.run.workers[session.pid])

    @cached_property
    def waiting(self) -> int:
        return sum(bool(session.blocked_by) for session in self.sessions)


def connected(pids: set[int], sessions: tuple[Session, ...]) -> set[int]:
    """Add all sessions that these wait for or block, directly or indirectly."""
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
    """Within a transaction, make statements see only this schema."""
    [before] = fetch(connection, NOW_SEEN)
    fetch(connection, SEE, {"path": schema})
    yield
    fetch(connection, SEE, before)


def look() -> LiveRun | None:
    """The running run on this database; None if there is none, or if it is just ending."""
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


GONE = ("42P01", "3F000", "42883", "55P03")  # the table, schema or function is gone, or is being dropped


def _look(run: LabRun) -> LiveRun:
    subject = PATTERNS[run.pattern].subject
    [counters] = fetch(connection, COUNTERS)
    workers = {row["pid"]: row["worker"] for row in fetch(connection, measure.WORKERS)}
    rows = NEXT[subject]()[:MOST_ROWS] if subject in NEXT else Task.objects.none()
    held = attribution.held(rows.model, [row.pk for row in rows.only("pk")])
    drawn = measure.latest_spans(connection, has_attempts=subject == "accounts")
    return LiveRun(run.schema, Counters(**counters), activity.read(), tuple(held), workers, tuple(drawn))
