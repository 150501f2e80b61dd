"""The page of workers: state, current task, claimed tasks, rate, and the workers that have ended."""

from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import NamedTuple, Self

from django.db import connection
from django.db.models import Q
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from dashboard.stale import held_by
from tasks.diagnosis.stats import Rate, rates
from tasks.models import Task, Worker
from tasks.operations.filters import InvalidFilter, Params, given
from tasks.operations.workers import HANGS_AFTER_SECONDS
from tasks.queue import presence
from tasks.queue.presence import Life, WorkerState
from tasks.support.database import fetch, session_name

MOST = 200
ENDED_PAGE = 25
LIVES = {
    Life.ALIVE: gettext_lazy("Alive"),
    Life.SILENT: gettext_lazy("Silent"),
    Life.MISSING: gettext_lazy("Missing"),
    Life.RESTARTED: gettext_lazy("Away since the restart"),
    Life.DEAD: gettext_lazy("Dead"),
}
# Workers that need attention come first.
ORDER = (Life.DEAD, Life.MISSING, Life.SILENT, Life.RESTARTED, Life.ALIVE)

NOW = "SELECT clock_timestamp() AS now"
# Sessions of the worker's supervisor and handlers; the page links one of them to the locks.
SESSIONS = """
SELECT DISTINCT ON (application_name) application_name, pid, wait_event_type = 'Lock' AS waits
FROM pg_stat_activity
WHERE application_name = ANY(%(names)s::text[]) AND datname = current_database()
ORDER BY application_name, coalesce(wait_event_type = 'Lock', false) DESC, state = 'active' DESC NULLS LAST, pid
"""


class Session(NamedTuple):
    """A worker's database session; `waits` is True if it waits for a lock."""

    pid: int
    waits: bool


@dataclass(frozen=True)
class Line:
    """One worker of the page. `held`: its PROCESSING tasks, including the current one; ages in seconds."""

    worker: WorkerState
    held: int
    current: Task | None
    current_seconds: float
    rate: Rate
    session: Session | None

    @property
    def key(self) -> str:
        """The worker's id as an HTML id."""
        return sha256(self.worker.id.encode()).hexdigest()[:12]

    @property
    def life(self) -> str:
        """The worker's state, in a word or two."""
        return str(LIVES[self.worker.life])

    @property
    def version(self) -> str:
        """A text that changes when the row changes enough to be marked."""
        stopping = "stopping" if self.worker.stop_requested_at else ""
        return f"{self.worker.life} {self.worker.current_task_id or ''} {stopping} {self.hangs}"

    @property
    def announcement(self) -> str:
        """The sentence for screen readers and the list of changes."""
        return _("worker %(id)s: %(life)s") % {"id": self.worker.id, "life": self.life}

    @property
    def unstarted(self) -> int:
        """Number of tasks claimed ahead, if the worker reports its current task."""
        return self.held - 1 if self.current else self.held

    @property
    def is_dead(self) -> bool:
        return self.worker.life in (Life.DEAD, Life.MISSING)

    @property
    def is_trouble(self) -> bool:
        return self.worker.life is not Life.ALIVE

    @property
    def may_stop(self) -> bool:
        """True if the worker can still be asked to stop."""
        return not self.is_dead and self.worker.stop_requested_at is None

    @property
    def hangs(self) -> bool:
        """True if it keeps tasks from others that it has not begun; a guess if it does not report its current task."""
        if self.is_dead:
            return False
        if self.current is None:
            return self.worker.is_late and self.held > 1
        return self.unstarted > 0 and self.current_seconds >= HANGS_AFTER_SECONDS


@dataclass(frozen=True)
class Board:
    """Workers that live or hold tasks; `more` counts those not shown."""

    now: datetime
    lines: list[Line]
    more: int

    @property
    def has_live_worker(self) -> bool:
        return any(line.worker.is_alive for line in self.lines)


@dataclass(frozen=True)
class Place:
    """Start of a page of ended workers: below this end and id; both missing: the latest."""

    stopped_at: datetime | None = None
    worker_id: str = ""

    @classmethod
    def from_params(cls, params: Params) -> Self:
        """Read `before` and `id`; raises InvalidFilter."""
        before, ids = given(params, "before"), given(params, "id")
        if not before:
            return cls()
        try:
            at = parse_datetime(before[0])
        except ValueError:
            at = None
        if at is None or at.tzinfo is None:
            raise InvalidFilter(f"{before[0]!r} is not a time with its zone, like 2026-11-20T03:12:05+00:00.")
        return cls(at, ids[0] if ids else "")


@dataclass(frozen=True)
class Ended:
    """One page of ended workers, the latest first."""

    workers: list[Worker]
    next_place: Place | None = None


def look() -> Board:
    """Workers that live or hold tasks, those in trouble first; eight statements."""
    states = sorted(presence.states().values(), key=lambda state: (ORDER.index(state.life), state.id))
    now = fetch(connection, NOW)[0]["now"]
    shown = states[:MOST]
    held = held_by(state.id for state in shown)
    currents = Task.objects.processing().in_bulk([state.current_task_id for state in shown if state.current_task_id])
    speeds = rates({state.id: age(state.started_at, now) for state in shown})
    sessions = sessions_of(shown)
    lines = [
        Line(
            worker=state,
            held=held.get(state.id, 0),
            current=its_own(currents.get(state.current_task_id or 0), state),
            current_seconds=age(state.current_since, now),
            rate=speeds[state.id],
            session=sessions.get(state.id),
        )
        for state in shown
    ]
    return Board(now, lines, len(states) - len(shown))


def its_own(task: Task | None, worker: WorkerState) -> Task | None:
    """The worker's reported current task, unless it has lost the claim since."""
    return task if task and task.claimed_by == worker.id else None


def age(moment: datetime | None, now: datetime) -> float:
    return max(0.0, (now - moment).total_seconds()) if moment else 0.0


def sessions_of(states: list[WorkerState]) -> dict[str, Session]:
    names = {session_name("worker", state.id): state.id for state in states}
    rows = fetch(connection, SESSIONS, {"names": list(names)})
    return {names[row["application_name"]]: Session(row["pid"], bool(row["waits"])) for row in rows}


def look_at_ended(place: Place, *, limit: int = ENDED_PAGE) -> Ended:
    """Ended workers below `place`. There are few, and no index serves this order."""
    workers = Worker.objects.filter(stopped_at__isnull=False).order_by("-stopped_at", "-pk")
    if place.stopped_at is not None:
        below = Q(stopped_at=place.stopped_at, pk__lt=place.worker_id)
        workers = workers.filter(Q(stopped_at__lt=place.stopped_at) | below)
    found = list(workers[: limit + 1])
    last = found[limit - 1] if len(found) > limit else None
    return Ended(found[:limit], Place(last.stopped_at, last.pk) if last else None)
