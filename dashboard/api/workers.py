"""Workers in the API: who lives, what each runs, and the request to stop."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Field, Router, Schema

from dashboard.api.base import needs, who
from dashboard.api.shared import Name, Reason
from dashboard.live import snapshots
from dashboard.views.workers import MOST, SEE, STOP, WorkerRow, board
from tasks.operations import stop_worker as ask_to_stop

router = Router(tags=["Workers"])


class WorkerItem(Schema):
    """One worker process."""

    id: str = Field(examples=["w7f3a2"])
    hostname: str | None = Field(examples=["db-host-2"])
    pid: int | None = Field(examples=[31337])
    alive: bool
    life: str = Field(description="`alive`, or why it is not counted as alive.", examples=["alive"])
    queues: list[str] = Field(description="The queues that it serves; empty: every queue.", examples=[["mail"]])
    started_at: datetime | None
    heartbeat_age_seconds: float | None = Field(examples=[2.5])
    stop_requested_at: datetime | None
    current_task_id: int | None = Field(description="Published once a task has run for a moment.", examples=[4711])
    current_seconds: float | None = Field(description="How long it has run.", examples=[12.0])
    held: int = Field(description="Its PROCESSING tasks, the current one included.", examples=[8])
    per_minute: float = Field(description="Tasks that it ended a minute, over five minutes.", examples=[120.5])

    @classmethod
    def of(cls, row: WorkerRow) -> dict[str, Any]:
        same = ("id", "hostname", "pid", "started_at", "heartbeat_age_seconds", "stop_requested_at")
        return {
            **{name: getattr(row.worker, name) for name in same},
            "alive": row.worker.is_alive,
            "life": row.worker.life.value,
            "queues": row.worker.queues or [],
            "current_task_id": row.current.pk if row.current else None,
            "current_seconds": row.current_seconds if row.current else None,
            "held": row.held,
            "per_minute": row.rate.per_minute,
        }


class WorkerList(Schema):
    items: list[WorkerItem]
    next: str | None = Field(None, description="Always null.")
    more: int = Field(description=f"Workers beyond the first {MOST}; those in trouble come first.", examples=[0])


class Stopping(Schema):
    """The answer to a request to stop."""

    changed: bool = Field(description="False if it had stopped, or was asked before.")


@router.get("", response=WorkerList, summary="List the workers")
def list_workers(request: HttpRequest) -> dict[str, Any]:
    """Workers that live or hold tasks, those in trouble first."""
    needs(request, SEE)
    found = snapshots.of(request).once(board)
    return {"items": map(WorkerItem.of, found.lines), "more": found.more}


@router.post("/{path:worker_id}/stop", response=Stopping, summary="Ask a worker to stop")
def stop_worker(request: HttpRequest, worker_id: Name, body: Reason) -> dict[str, bool]:
    """It stops claiming, finishes its tasks and ends."""
    needs(request, SEE, STOP)
    return {"changed": ask_to_stop(worker_id, who(request), reason=body.reason)}
