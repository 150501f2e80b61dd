"""The running run at this moment: its counters, sessions, rows and waits.

It uses the code of the lock page with the run's schema as the search path. So tables, named locks and workers are those
of the run.
"""

from dataclasses import dataclass, replace
from typing import Any

from django.db import DatabaseError, connection
from django.utils.functional import cached_property

from dashboard.lab import measure
from dashboard.lab.measure import Span
from dashboard.lab.patterns import PATTERNS
from dashboard.locks import activity, attribution
from dashboard.locks.activity import Activity
from dashboard.locks.attribution import ROWS_SHOWN, Behind, HeldRow, rows_by_pid
from dashboard.locks.limits import limited
from dashboard.locks.rows import busy_row, tree_rows
from dashboard.locks.tree import RowRef, Session, build_tree, tree_lines
from dashboard.models import LabRun
from tasks.models import Task
from tasks.support.database import fetch, sqlstate

MOST_ROWS = 200  # rows whose holders are checked
NOW_SEEN = "SELECT current_setting('search_path') AS path"
SEE = "SELECT set_config('search_path', %(path)s::text, true)"
# The ledger's counts so far.
COUNTERS = """
WITH line AS (
    SELECT count(*) FILTER (WHERE kind = 'effect')::int AS effects,
        count(DISTINCT item) FILTER (WHERE kind = 'effect')::int AS processed,
        count(*) FILTER (WHERE kind = 'lost')::int AS thrown_away, count(*) FILTER (WHERE kind = 'kill')::int AS kills,
        extract(epoch FROM clock_timestamp() - min(began))::float8 AS seconds
    FROM lab_ledger WHERE kind <> 'session'
)
SELECT effects, processed, effects - processed AS duplicates, thrown_away, kills,
    coalesce(processed / nullif(seconds, 0), 0) AS items_per_second
FROM line
"""


class CopiedRow(RowRef):
    """A row of a run's schema: the live row with the same id is another one."""

    @property
    def url(self) -> str:
        return ""


@dataclass(frozen=True)
class LiveRun:
    """One snapshot of a run, for readers of all languages. `workers`: process numbers by pid, below 0 for outsiders."""

    schema: str
    counters: dict[str, Any]
    seen: Activity
    held: list[HeldRow]
    workers: dict[int, int]
    spans: list[Span]

    @cached_property
    def members(self) -> list[Session]:
        """The run's sessions, and those that block them or wait for them, directly or indirectly."""
        found = {
            session.pid
            for session in self.seen.sessions
            if session.pid in self.workers or (session.identity.name == self.schema and session.blocked_by)
        }
        size = -1
        while size < len(found):
            size = len(found)
            for session in self.seen.sessions:
                if session.pid in found:
                    found.update(session.blocked_by)
                elif found.intersection(session.blocked_by):
                    found.add(session.pid)
        return [self.seen.by_pid[pid] for pid in sorted(found) if pid in self.seen.by_pid]

    @property
    def waiting(self) -> int:
        return sum(bool(session.blocked_by) for session in self.members)

    def locks(self) -> dict[str, Any]:
        """The lock tree and the workers that progress, with the rows that they hold, for one reader's page."""
        rows = rows_by_pid(self.seen, self.held)
        shown = {pid: tuple(CopiedRow(row.model, row.id) for row in refs[:ROWS_SHOWN]) for pid, refs in rows.items()}
        behind = {pid: Behind(rows=refs, more=len(rows[pid]) - len(refs)) for pid, refs in shown.items()}
        sessions = [
            replace(session, label=measure.worker_name(self.workers[session.pid]))
            if session.pid in self.workers
            else session
            for session in self.members
        ]
        lines = tree_lines(build_tree(sessions, self.seen.locks))
        busy = [one for one in sessions if one.label and one.state != "idle" and not one.blocked_by]
        busy.sort(key=lambda session: self.workers[session.pid])
        return {
            "tree": tree_rows(lines, behind, may_signal=False),
            "busy": [busy_row(session, behind.get(session.pid)) for session in busy],
        }


GONE = ("42P01", "3F000", "42883", "55P03")  # the table, schema or function is gone, or is being dropped


def look() -> LiveRun | None:
    """The running run on this database; None if there is none, or if it is just ending."""
    run = LabRun.objects.filter(state=LabRun.State.RUNNING).exclude(schema="").order_by("-pk").first()
    if run is None or run.pattern not in PATTERNS:
        return None
    try:
        with limited(connection):
            # From here on statements see only the run's schema.
            [before] = fetch(connection, NOW_SEEN)
            fetch(connection, SEE, {"path": run.schema})
            rows = PATTERNS[run.pattern].rows
            [counters] = fetch(connection, COUNTERS)
            workers = {row["pid"]: row["worker"] for row in fetch(connection, measure.WORKERS)}
            following = rows.following()[:MOST_ROWS] if rows.following else Task.objects.none()
            held = attribution.held(following.model, [row.pk for row in following.only("pk")])
            spans = measure.read_spans(connection, rows.work, latest=measure.LATEST_SPANS)
            found = LiveRun(run.schema, counters, activity.read(), held, workers, spans)
            fetch(connection, SEE, before)
            return found
    except DatabaseError as error:
        if sqlstate(error) in GONE:
            return None
        raise
