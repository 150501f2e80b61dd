"""Locks in the API: the tree of who waits for whom, named locks, and signals to a session."""

from datetime import datetime
from typing import Any, Literal

from django.db import ProgrammingError
from django.http import HttpRequest
from ninja import Field, Router, Schema
from pydantic import AwareDatetime

from dashboard.api.base import Conflict, Invalid, needs, who
from dashboard.api.shared import Body, Name, NeededReason, ReasonText
from dashboard.live import snapshots
from dashboard.locks import attribution, signals
from dashboard.locks.attribution import Behind, LockPage
from dashboard.locks.tree import LINE_CAP, Lock, TreeLine
from dashboard.views import locks as page
from dashboard.views import schedule
from tasks.locking.named import backends
from tasks.locking.named.holder import Holder
from tasks.operations import locks as operations
from tasks.operations.filters import BIGGEST_ID

router = Router(tags=["Locks"])


class Wait(Schema):
    """The lock for which a session waits."""

    locktype: str = Field(examples=["transactionid"])
    mode: str = Field(examples=["ShareLock"])
    target: str = Field(description="The row if known, else the table or the name.", examples=["order 1042"])
    seconds: float | None = Field(examples=[41.5])


class TaskBehind(Schema):
    """The task that the session's worker runs."""

    id: int = Field(examples=[4711])
    task_path: str = Field(examples=["shop.tasks.charge"])
    attempt: int
    max_attempts: int


class Session(Schema):
    """One line of the tree. The lines below it with a higher level wait for it."""

    level: int = Field(description="1: a root blocker, which waits for nobody.", examples=[1])
    pid: int | None = Field(description="Null: a holder that is no session of this server.", examples=[41233])
    who: str = Field(description="The worker, command, page or program behind it.", examples=["worker w7f3a2"])
    # As text: times are rounded to milliseconds elsewhere, and a signal must name this one exactly.
    started: str | None = Field(
        description="Start of the session; a signal needs it as it is.", json_schema_extra={"format": "date-time"}
    )
    state: str | None = Field(examples=["idle in transaction"])
    transaction_seconds: float | None = Field(examples=[240.0])
    query: str = Field(description="Its statement, without values.", examples=["UPDATE orders_order SET …"])
    waits_for: Wait | None = None
    victims: int = Field(description="Sessions that wait for it, directly or behind others.", examples=[3])
    task: TaskBehind | None = None
    rows: list[str] = Field(description="Rows that it holds.", examples=[["order 1042"]])
    may_be_signalled: bool

    @classmethod
    def of(cls, line: TreeLine, work: Behind) -> dict[str, Any]:
        session = line.node.session
        same = ("state", "transaction_seconds", "query", "may_be_signalled")
        return {
            **{name: getattr(session, name) for name in same},
            "level": line.level,
            "pid": None if session.is_outsider else session.pid,
            "who": str(session.identity),
            "started": session.backend_start.isoformat() if session.backend_start else None,
            "waits_for": wait_of(line.node.waits_for),
            "victims": line.node.victims,
            "task": vars(work.task) if work.task else None,
            "rows": [str(row) for row in work.rows],
        }


class Unreadable(Schema):
    """A table that a session has locked, so that names from it are missing."""

    table: str = Field(examples=["tasks_task"])
    pid: int | None = Field(examples=[41233])


class LockTree(Schema):
    items: list[Session] = Field(description=f"The tree, roots with the most victims first; at most {LINE_CAP} lines.")
    next: str | None = Field(None, description="Always null.")
    more: int = Field(description="Sessions of the tree that are not listed.", examples=[0])
    blocked: int = Field(description="Sessions that wait for a lock.", examples=[3])
    longest_wait_seconds: float | None = Field(examples=[41.5])
    circles: list[list[int]] = Field(description="Pids that wait for each other for ever.", examples=[[]])
    unavailable: list[Unreadable]

    @classmethod
    def of(cls, found: LockPage) -> dict[str, Any]:
        nobody = Behind()
        lines = [Session.of(line, found.behind.get(line.node.session.pid, nobody)) for line in found.lines]
        return {
            "items": lines,
            "more": found.not_shown,
            "blocked": len(found.seen.blocked),
            "longest_wait_seconds": found.longest_wait,
            "circles": found.seen.circles,
            "unavailable": [{"table": table.table, "pid": table.pid} for table in found.unavailable],
        }


class NamedLock(Schema):
    """A named lock that somebody holds, or held last."""

    name: str = Field(examples=["nightly-report"])
    backend: str = Field(examples=["lease"])
    life: str = Field(description="Of its holder: alive, unseen, restarted, missing, expired or free.")
    who: str = Field(examples=["web-3 pid 311 (9f2c)"])
    fence: int | None = Field(examples=[17])
    acquired_at: datetime | None
    expires_at: datetime | None
    may_be_freed: bool

    @classmethod
    def of(cls, holder: Holder) -> dict[str, Any]:
        names = ("name", "backend", "who", "fence", "acquired_at", "expires_at", "may_be_freed")
        return {**{name: getattr(holder, name) for name in names}, "life": holder.life.value}


class NamedLocks(Schema):
    items: list[NamedLock]
    next: str | None = Field(None, description="Always null.")
    problem: str = Field(description="A backend that did not answer. Empty: all did.", examples=[""])


class Release(NeededReason):
    """The lock as it was seen."""

    fence: int = Field(ge=0, le=BIGGEST_ID, description="As the list shows it.", examples=[17])


class Released(Schema):
    released: bool


class Signal(Body):
    """A signal to one session."""

    pid: int = Field(ge=1, le=page.LARGEST_PID, examples=[41233])
    started: AwareDatetime = Field(
        description="`started` of the session: pids are used again.", examples=["2026-11-21T03:10:00.123456+00:00"]
    )
    action: Literal["cancel", "terminate"] = Field(description="End its statement, or its session.")
    reason: ReasonText = Field("", description="Needed to terminate.")


class Signalled(Schema):
    signalled: bool = Field(description="False if the session had ended by itself.")
    detail: str = Field("", description="What the operator should know.", examples=[""])


@router.get("", response=LockTree, summary="Show the lock tree")
def show_locks(request: HttpRequest) -> dict[str, Any]:
    """It comes from the catalogs alone, so it answers while a migration locks every table."""
    needs(request, page.SEE)
    return LockTree.of(attribution.lock_page(snapshots.of(request)))


@router.get("/named", response=NamedLocks, summary="List the named locks")
def list_named_locks(request: HttpRequest) -> dict[str, Any]:
    needs(request, schedule.SEE)
    seen = backends.everywhere()
    return {"items": map(NamedLock.of, seen.holders), "problem": seen.problem}


@router.post("/named/{path:name}/release", response=Released, summary="Release a named lock")
def release_lock(request: HttpRequest, name: Name, body: Release) -> dict[str, bool]:
    """Free a lock whose holder is gone. A live holder keeps it, and the answer is 409."""
    needs(request, schedule.RELEASE)
    result = operations.release_lock(name, body.fence, who(request), reason=body.reason)
    if not result.released and not result.is_over:
        raise Conflict(result.problem)
    return {"released": result.released}


@router.post("/signals", response=Signalled, summary="Cancel a statement or end a session")
def send_signal(request: HttpRequest, body: Signal) -> dict[str, Any]:
    """Only the very session that was seen is signalled, of this database, and never the dashboard's own."""
    needs(request, page.SEE, page.SIGNAL)
    if body.action == "terminate" and not body.reason:
        raise Invalid("reason", "Ending a session needs a reason, which the audit keeps.")
    try:
        sent = signals.signal(body.pid, body.started, body.action, who(request), reason=body.reason)
    except signals.AlreadySignalled as problem:
        return {"signalled": False, "detail": str(problem)}
    except signals.NotAudited as problem:
        return {"signalled": True, "detail": str(problem)}
    except signals.NotSignalled as problem:
        raise Conflict(str(problem)) from problem
    except ProgrammingError as error:
        raise Conflict(page.refusal(error, body.pid)) from error
    return {"signalled": sent}


def wait_of(lock: Lock | None) -> dict[str, Any] | None:
    if lock is None:
        return None
    return {"locktype": lock.locktype, "mode": lock.mode, "target": lock.target, "seconds": lock.wait_seconds}
