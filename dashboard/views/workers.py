"""The page of workers: state, tasks and rate; stopping one, and releasing tasks that a hanging one has not begun."""

import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple, Self

import psutil
from django.contrib import messages
from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_POST, require_safe

from dashboard import links
from dashboard.attention.inbox import SEE_SESSIONS
from dashboard.layout import page
from dashboard.live import snapshots
from dashboard.live.fragment import SharedPart
from dashboard.stale import held_by
from dashboard.task_pages.confirmation import report_refusals
from tasks import operations
from tasks.admin.forms import reason_of
from tasks.admin.rights import missing, require, who
from tasks.diagnosis import lock_holders
from tasks.diagnosis.finding import OF_LIFE, command, ending_of
from tasks.diagnosis.stats import Rate, rates
from tasks.exceptions import RowlockError
from tasks.models import Task
from tasks.operations.filters import BIGGEST_ID
from tasks.operations.workers import (
    HANGS_AFTER_SECONDS,
    MOST_RELEASED,
    RIGHT_TO_RELEASE,
    RIGHT_TO_STOP,
    hanging_on,
    unstarted,
)
from tasks.queue import presence
from tasks.queue.presence import Life, WorkerState
from tasks.support import database, reading
from tasks.support.addresses import address
from tasks.support.database import fetch, is_lock_not_available, session_name
from tasks.support.reading import Unreadable

SEE, TAKE, STOP, RELEASE = "tasks.view_worker", "tasks.recover_task", RIGHT_TO_STOP, RIGHT_TO_RELEASE
BIGGEST_VERSION = 2**31 - 1
MOST = 50
ORDER = [*OF_LIFE, Life.ALIVE]  # workers that need attention come first
SAME_PROCESS_SECONDS = 60.0  # between the start of a process and its row; a later process may have its pid

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
class WorkerRow:
    """One worker of the page. `held`: its PROCESSING tasks, including the current one; ages in seconds."""

    worker: WorkerState
    held: int
    current: Task | None
    current_seconds: float
    rate: Rate
    session: Session | None
    memory_bytes: int | None = None

    @property
    def key(self) -> str:
        """The worker's id as an HTML id."""
        return links.element_id(self.worker.id)

    @property
    def life(self) -> str:
        if self.has_ended and self.worker.stop_reason != "convicted":
            return _("Has ended")
        return str(OF_LIFE[self.worker.life].label) if self.worker.life in OF_LIFE else _("Alive")

    @property
    def ending(self) -> str:
        return ending_of(self.worker.stop_reason)

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
    def current_name(self) -> str:
        return self.current.task_path.rpartition(".")[2] if self.current else ""

    @property
    def serves(self) -> str:
        """The queues that it serves, in order."""
        return ", ".join(self.worker.queues or ()) or _("every queue")

    @property
    def unstarted(self) -> int:
        """Number of tasks claimed ahead, if the worker reports its current task."""
        return self.held - 1 if self.current else self.held

    @property
    def has_ended(self) -> bool:
        """True if it ended and left no task behind."""
        return self.worker.stopped_at is not None and not self.held

    @property
    def is_dead(self) -> bool:
        return self.worker.life in (Life.DEAD, Life.MISSING)

    @property
    def is_trouble(self) -> bool:
        return self.worker.life is not Life.ALIVE and not self.has_ended

    @property
    def may_stop(self) -> bool:
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
    lines: list[WorkerRow]
    more: int

    @property
    def has_live_worker(self) -> bool:
        return any(row.worker.is_alive for row in self.lines)


def board() -> Board:
    """Workers that live or hold tasks, those in trouble first; eight statements."""
    states = sorted(presence.states().values(), key=lambda state: (ORDER.index(state.life), state.id))
    now, shown = database.now(connection), states[:MOST]
    return Board(now, rows_of(shown, now), len(states) - len(shown))


def with_asked(found: Board, worker_id: str) -> Board:
    """The board with this worker, which may have ended or be one of those not shown."""
    if any(row.worker.id == worker_id for row in found.lines):
        return found
    asked = rows_of(list(presence.states([worker_id]).values()), found.now)
    return replace(found, lines=[*asked, *found.lines])


def rows_of(shown: list[WorkerState], now: datetime) -> list[WorkerRow]:
    held = held_by(state.id for state in shown)
    currents = Task.objects.processing().in_bulk([state.current_task_id for state in shown if state.current_task_id])
    speeds = rates({state.id: age(state.started_at, now) for state in shown})
    names = {session_name("worker", state.id): state.id for state in shown}
    rows = fetch(connection, SESSIONS, {"names": list(names)})
    sessions = {names[row["application_name"]]: Session(row["pid"], bool(row["waits"])) for row in rows}
    lines = []
    for state in shown:
        current = currents.get(state.current_task_id or 0)
        # It may have lost the claim since.
        current = current if current and current.claimed_by == state.id else None
        seconds, session = age(state.current_since, now), sessions.get(state.id)
        number, speed = held.get(state.id, 0), speeds[state.id]
        lines.append(WorkerRow(state, number, current, seconds, speed, session, memory_of(state)))
    return lines


def memory_of(state: WorkerState) -> int | None:
    """The memory of a live worker of this host, in bytes; None for all others."""
    if not state.is_alive or state.hostname != socket.gethostname() or not state.pid or not state.started_at:
        return None
    try:
        process = psutil.Process(state.pid)
        is_same = abs(process.create_time() - state.started_at.timestamp()) < SAME_PROCESS_SECONDS
        return int(process.memory_info().rss) if is_same else None
    except psutil.Error:
        return None


def age(moment: datetime | None, now: datetime) -> float:
    return max(0.0, (now - moment).total_seconds()) if moment else 0.0


def paths(view: Callable[..., Any]) -> list[URLPattern]:
    return [
        path("ops/workers/", view(workers), name="ops_workers"),
        path("ops/workers/stop/", view(stop), name="ops_stop_worker"),
        path("ops/workers/release/", view(release), name="ops_release_unstarted"),
    ]


@require_safe
def workers(request: HttpRequest) -> HttpResponse:
    """The page; for htmx only its live fragment."""
    require(request.user, SEE)
    if request.headers.get("HX-Request"):
        return LIVE.answer(request)
    LIVE.expect(request)
    return page(request, "dashboard/workers.html", _("Workers"), live_context(request))


def live_context(request: HttpRequest) -> dict[str, Any]:
    """Live data: an opened page queries for itself, refreshes share one snapshot; `?worker=` marks one worker."""
    asked = request.GET.get("worker", "")
    found = snapshots.of(request).once(board) if request.headers.get("HX-Request") else board()
    return {
        "board": with_asked(found, reading.name(asked)) if asked else found,
        "asked": asked,
        "cannot_take": missing(request.user, TAKE),
        "cannot_stop": missing(request.user, STOP),
        "cannot_release": missing(request.user, RELEASE),
        "start": command("run_worker"),
        "take": command("recover_tasks"),
    }


LIVE = SharedPart("dashboard/_workers.html", live_context, every=2)


class WorkerRequest(NamedTuple):
    """A person's request for one worker; `versions`: the tasks that the preview showed, with their versions."""

    worker_id: str
    reason: str
    versions: dict[int, int]
    is_confirmed: bool

    @classmethod
    def from_post(cls, post: QueryDict) -> Self:
        """Read the form. Raises Unreadable."""
        versions = parse_versions(post.get("versions", ""))
        return cls(reading.name(post.get("worker", "")), reason_of(post), versions, "confirmed" in post)

    def command(self, name: str) -> str:
        return command(name, self.worker_id, "--reason", self.reason or "…")


def parse_versions(text: str) -> dict[int, int]:
    """Parse `4711:2 4712:5`. Raises Unreadable."""
    pairs = [pair.partition(":") for pair in text.split()]
    if len(pairs) > MOST_RELEASED:
        raise Unreadable(f"The form names more than {MOST_RELEASED} tasks.")
    return {
        reading.whole_number(id, 1, BIGGEST_ID, "the id of a task"): reading.whole_number(
            version, 0, BIGGEST_VERSION, "the version of a task"
        )
        for id, _colon, version in pairs
    }


@require_POST
def stop(request: HttpRequest) -> HttpResponse:
    """First preview the worker's tasks, then ask it to stop."""
    require(request.user, SEE)
    require(request.user, STOP)
    form = WorkerRequest.from_post(request.POST)
    if not form.is_confirmed:
        context = {"action": "stop", "url": "admin:ops_stop_worker", "command": form.command("stop_worker")}
        return preview(request, form, _("Ask this worker to stop?"), context)
    try:
        is_new = operations.stop_worker(form.worker_id, who(request.user), reason=form.reason)
    except (RowlockError, DatabaseError) as error:
        return refused(request, error)
    if is_new:
        text = _("Worker %(id)s is asked to finish what it runs and to stop.")
    else:
        text = _("Worker %(id)s has stopped, or was asked before; nothing changed.")
    worker = links.anchor(form.worker_id, links.worker(form.worker_id))
    messages.success(request, links.sentence(text, id=worker))
    return redirect(address("admin:ops_workers"))


@require_POST
def release(request: HttpRequest) -> HttpResponse:
    """First preview the tasks with their versions, then release exactly those."""
    require(request.user, SEE)
    require(request.user, RELEASE)
    form = WorkerRequest.from_post(request.POST)
    try:
        if not form.is_confirmed:
            return preview_release(request, form)
        result = operations.release_unstarted(
            form.worker_id, who(request.user), reason=form.reason, versions=form.versions
        )
    except (RowlockError, DatabaseError) as error:
        return refused(request, error)
    if result.done:
        text = ngettext("%(number)d task was released.", "%(number)d tasks were released.", len(result.done))
        messages.success(request, text % {"number": len(result.done)})
    report_refusals(request, result)
    if not result.done and not result.refused:
        messages.info(request, _("There was nothing to release."))
    return redirect(address("admin:ops_workers"))


def preview_release(request: HttpRequest, form: WorkerRequest) -> HttpResponse:
    current = hanging_on(form.worker_id)
    tasks = list(Task.objects.filter(pk__in=unstarted(form.worker_id, current.id)).order_by("pk"))
    context = {
        "action": "release",
        "url": "admin:ops_release_unstarted",
        "tasks": tasks,
        "current": current,
        "versions": " ".join(f"{task.pk}:{task.version}" for task in tasks),
        "command": form.command("release_unstarted"),
    }
    return preview(request, form, _("Release what this worker has not begun?"), context)


def preview(request: HttpRequest, form: WorkerRequest, title: str, context: dict[str, Any]) -> HttpResponse:
    """Show what would happen; 409 if the worker is gone."""
    state = presence.states([form.worker_id])[form.worker_id]
    is_gone = state.is_dead or not state.registered
    context |= {"asked": form, "worker": state, "is_gone": is_gone}
    return page(request, "dashboard/worker_action.html", title, context, status=409 if is_gone else 200)


def refused(request: HttpRequest, error: Exception) -> HttpResponse:
    """Redirect with the reason; database errors other than a busy lock are raised again."""
    told = [str(error)]
    if isinstance(error, DatabaseError):
        if not is_lock_not_available(error):
            raise error
        holders = lock_holders.holders(connection, error) if request.user.has_perm(SEE_SESSIONS) else []
        busy = _("The worker's row is busy: another session has locked it. Try again.")
        told = [busy, *(holder.sentence for holder in holders)]
    messages.error(request, " ".join(told))
    return redirect(address("admin:ops_workers"))
