"""One installation at a glance for the fleet, and the search for a task, a worker or a key."""

from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from typing import Any, Literal, TypeVar

from django.db import connection
from django.db.models import Q
from django.http import HttpRequest
from ninja import Field, Query, Router, Schema

import tasks
from dashboard import links, series
from dashboard.api.base import may, needs, only
from dashboard.api.shared import PRINTABLE
from dashboard.attention import inbox
from dashboard.attention.queues import numbers
from dashboard.live import snapshots
from dashboard.locks import activity
from dashboard.locks.limits import Names
from dashboard.series import SPANS
from dashboard.views import palette
from dashboard.views.overview import unless_slow
from tasks.models import Task
from tasks.models.task import HOLDS_ITS_KEY, HOLDS_UNIQUE_KEY
from tasks.panels import Snapshot
from tasks.support import reading
from tasks.support.database import fetch

RIGHTS = ("tasks.view_task", "tasks.view_throughput", "tasks.view_worker", "dashboard.view_backend")
MOST = 20
MINUTES = SPANS["1h"]
DATABASE = """
SELECT current_database()::text AS name, split_part(current_setting('server_version'), ' ', 1) AS server_version
"""
T = TypeVar("T")
router = Router(tags=["Fleet"])


class Database(Schema):
    name: str = Field(examples=["billing"])
    server_version: str = Field(examples=["16.4"])


class SeverityCounts(Schema):
    """Lines of *Needs attention* that nobody has acknowledged."""

    critical: int = Field(description="Work stands still until a person acts.", examples=[0])
    warnings: int = Field(examples=[2])


class QueueBrief(Schema):
    name: str = Field(examples=["mail"])
    ready: int = Field(examples=[12])
    oldest_seconds: float | None = Field(description="How long the oldest due task has waited.", examples=[1.5])
    running: int = Field(examples=[4])
    failed: int = Field(examples=[0])


class WorkerCounts(Schema):
    alive: int = Field(examples=[4])
    of: int = Field(description="Workers that live or hold tasks.", examples=[4])


class Summary(Schema):
    """The state of one installation, at most about a second old."""

    version: str = Field(examples=["0.3.0"])
    database: Database
    health: Literal["ok", "warning", "critical"] = Field(examples=["warning"])
    severity: SeverityCounts
    queues: list[QueueBrief]
    throughput: list[int] = Field(
        examples=[[0] * MINUTES.slots],
        min_length=MINUTES.slots,
        max_length=MINUTES.slots,
        description="Completed tasks in each minute, oldest first.",
    )
    workers: WorkerCounts
    blocked_sessions: int = Field(description="Sessions that wait for a lock.", examples=[0])
    at: datetime = Field(description="By the database's clock.")
    unavailable: list[str] = Field(
        description="Parts that a lock kept from being read; they are empty or zero.", examples=[[]]
    )


class Found(Schema):
    kind: Literal["task", "worker", "unique_key", "ordering_key"] = Field(examples=["task"])
    id: str = Field(description="Of the task or the worker.", examples=["4711"])
    text: str = Field(examples=["Task #4711 charge · READY"])
    url: str = Field(description="Its page, as a path on this host.", examples=["/admin/tasks/task/4711/"])


class FoundList(Schema):
    items: list[Found]
    next: str | None = Field(None, description="Always null.")


@router.get("/summary", response=Summary, summary="Show this installation at a glance")
def summary(request: HttpRequest) -> dict[str, Any]:
    """One shared look a second serves every caller, so that it may be asked often."""
    needs(request, *RIGHTS)
    snapshot = snapshots.of(request)
    return {**facts(snapshot), **attention(snapshot, may(request))}


@router.get("/find", response=FoundList, summary="Find a task, a worker or a key")
def find(
    request: HttpRequest,
    q: str = Query(min_length=1, max_length=palette.LONGEST, pattern=PRINTABLE, description="An id, a host, or a key."),
) -> dict[str, Any]:
    """A task by its id, workers by id or host, and unfinished tasks by the whole of their key."""
    needs(request, "tasks.view_task", "tasks.view_worker")
    only(request, "q")
    text = q.strip()
    return {"items": list(matches(text))[:MOST] if text else []}


def facts(snapshot: Snapshot) -> dict[str, Any]:
    """The facts of queues, charts and sessions; a part that a lock keeps back is named."""
    missing: list[str] = []

    def part(name: str, found: T | None) -> T | None:
        if found is None:
            missing.append(name)
        return found

    queues = part("queues", unless_slow(snapshot, numbers))
    recent = snapshots.current(f"throughput {MINUTES.query}", MINUTES.seconds, grace=snapshots.GRACE)
    seen = part("throughput", unless_slow(recent, series.query_of(MINUTES)))
    sessions = part("blocked_sessions", unless_slow(snapshot, activity.read))
    workers = queues.workers if queues else []
    return {
        "version": tasks.__version__,
        "database": snapshot.once(database),
        "queues": [
            {
                "name": queue.name,
                "ready": queue.ready,
                "oldest_seconds": queue.oldest_ready_seconds,
                "running": queue.processing,
                "failed": queue.failed,
            }
            for queue in (queues.queues if queues else [])
        ],
        "throughput": [slot.completed for slot in seen.slots] if seen else [0] * MINUTES.slots,
        "workers": {"alive": sum(worker.is_alive for worker in workers), "of": len(workers)},
        "blocked_sessions": len(sessions.blocked) if sessions else 0,
        "at": snapshot.now,
        "unavailable": missing,
    }


def attention(snapshot: Snapshot, may: Callable[[str], bool]) -> dict[str, Any]:
    """The lines of *Needs attention*, counted."""
    found = inbox.gather(snapshot, may)
    critical = sum(line.is_critical for line in found.lines)
    warnings = len(found.lines) - critical + found.hidden  # the worst are among the first
    health = "critical" if critical else "warning" if warnings else "ok"
    return {"health": health, "severity": {"critical": critical, "warnings": warnings}}


def database() -> dict[str, Any]:
    return fetch(connection, DATABASE)[0]


def matches(text: str) -> Iterator[dict[str, str]]:
    """The matches found within its time limit; a locked table is left out."""
    names = Names(connection)
    for kind, condition in conditions(text).items():
        yield from names.ask(partial(list, tasks_of(kind, condition)), "tasks_task") or ()
    yield from names.ask(partial(list, workers(text)), "tasks_worker") or ()


def conditions(text: str) -> dict[str, Q]:
    """The conditions of a task by kind. Keys are those of unfinished tasks, because two indexes have them."""
    number = reading.digits(text.removeprefix("#"))
    by_id = {"task": Q(pk=number)} if number is not None and number <= palette.LARGEST_ID else {}
    return {
        **by_id,
        "unique_key": Q(unique_key=text) & HOLDS_UNIQUE_KEY,
        "ordering_key": Q(ordering_key=text, status__in=HOLDS_ITS_KEY),
    }


def tasks_of(kind: str, condition: Q) -> Iterator[dict[str, str]]:
    """The tasks that were found by this kind of text."""
    for row in Task.objects.filter(condition).order_by("ordering_key", "pk").only("task_path", "status")[:MOST]:
        text = f"Task #{row.pk} {row.task_path.rpartition('.')[2]} · {row.status}"
        yield {"kind": kind, "id": str(row.pk), "text": text, "url": links.page("admin:tasks_task_change", row.pk)}


def workers(text: str) -> Iterator[dict[str, str]]:
    """Live workers by their id or host."""
    for row in fetch(connection, palette.WORKERS, {"text": text, "most": MOST}):
        name = f"Worker {row['id']} ({row['hostname']}, pid {row['pid']})"
        yield {"kind": "worker", "id": row["id"], "text": name, "url": links.worker(row["id"])}
