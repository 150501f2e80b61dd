"""Queues in the API: their numbers, pause and resume, recovery, and how many of their tasks run."""

from typing import Any, Literal

from django.http import Http404, HttpRequest
from ninja import Field, Router, Schema

from dashboard.api.base import needs, who
from dashboard.api.shared import Body, Changed, Name, Reason, ReasonText
from dashboard.live import snapshots
from dashboard.task_pages import queues as page
from tasks.diagnosis.stats import Numbers, QueueNumbers
from tasks.models import SLOTS, Queue
from tasks.operations.queues import SWITCHES, set_queue_limit
from tasks.operations.verb import short_waits
from tasks.support.durations import rate_text

CONFIGURE = "tasks.configure_queue"
RATE = "Starts in a period: a number and `s`, `m`, `h` or `d`. Null: no rate."
router = Router(tags=["Queues"])


class QueueItem(Schema):
    """One queue now."""

    name: str = Field(examples=["mail"])
    ready: int = Field(description=f"Due tasks. Counts stop at {page.COUNT_CAP}.", examples=[12])
    scheduled: int = Field(description="Tasks that are due later.", examples=[3])
    processing: int = Field(description="Tasks that a worker holds.", examples=[4])
    stale: int = Field(description="Those of them whose worker is dead or silent.", examples=[0])
    failed: int = Field(description="Tasks out of attempts.", examples=[1])
    completed_last_hour: int = Field(examples=[911])
    oldest_ready_seconds: float | None = Field(
        description="How long the oldest due task has waited. Null: none is due, or all wait behind their keys.",
        examples=[1.5],
    )
    workers: int = Field(description="Live workers that claim from it.", examples=[2])
    paused: bool = Field(examples=[False])
    recovery: str = Field(description="`automatic` or `ask`.", examples=["automatic"])
    max_running: int | None = Field(description="How many of its tasks may run at once.", examples=[5])
    rate: str | None = Field(description=RATE, examples=["100/m"])


class QueueList(Schema):
    items: list[QueueItem]
    next: str | None = Field(None, description="Always null: the list is whole.")


class QueueSettings(Body):
    """The changes; a field that is left out stays as it is."""

    recovery: Literal["automatic", "ask"] = Field("automatic", description="`ask`: stale tasks wait for a person.")
    max_running: int | None = Field(None, ge=1, le=SLOTS, description="Null: no limit.", examples=[5])
    rate: str | None = Field(None, pattern=r"^[1-9][0-9]{0,5}/[smhd]$", description=RATE, examples=["100/m"])
    reason: ReasonText = ""


@router.get("", response=QueueList, summary="List the queues")
def list_queues(request: HttpRequest) -> dict[str, Any]:
    """Every queue with a task, a setting or a worker of its own."""
    return {"items": items(request)}


@router.post("/{path:name}/pause", response=Changed, summary="Pause a queue")
def pause_queue(request: HttpRequest, name: Name, body: Reason) -> dict[str, bool]:
    """No worker claims from a paused queue; what runs goes on."""
    return switch(request, "pause", name, body)


@router.post("/{path:name}/resume", response=Changed, summary="Resume a queue")
def resume_queue(request: HttpRequest, name: Name, body: Reason) -> dict[str, bool]:
    return switch(request, "resume", name, body)


@router.post("/{path:name}/configure", response=Changed, summary="Configure a queue")
def configure_queue(request: HttpRequest, name: Name, body: QueueSettings) -> dict[str, bool]:
    """Set recovery and limits, all or none of them."""
    needs(request, CONFIGURE)
    person, asked = who(request), body.dict(exclude_unset=True)
    reason, recovery = asked.pop("reason", ""), asked.pop("recovery", None)
    with short_waits():
        changes = [SWITCHES[recovery].change(name, person, reason=reason)] if recovery else []
        changes += [set_queue_limit(name, person, **asked, reason=reason)] if asked else []
    return {"changed": any(changes)}


@router.get("/{path:name}", response=QueueItem, summary="Show a queue")
def get_queue(request: HttpRequest, name: Name) -> dict[str, Any]:
    found = next((item for item in items(request) if item["name"] == name), None)
    if found is None:
        raise Http404(f"There is no queue {name!r}: no task, setting or worker names it.")
    return found


def switch(request: HttpRequest, action: str, name: str, body: Reason) -> dict[str, bool]:
    needs(request, SWITCHES[action].right)
    return {"changed": SWITCHES[action].change(name, who(request), reason=body.reason)}


def items(request: HttpRequest) -> list[dict[str, Any]]:
    """The queues of the shared snapshot, which their page shows too."""
    needs(request, page.VIEW)
    snapshot = snapshots.of(request)
    found, settings = snapshot.once(page.numbers), snapshot.once(page.configured)
    return [item(queue, found, settings.get(queue.name) or Queue(name=queue.name)) for queue in found.queues]


def item(queue: QueueNumbers, found: Numbers, setting: Queue) -> dict[str, Any]:
    return {
        **vars(queue),
        "workers": len(found.servers(queue.name)),
        "max_running": setting.max_running,
        "rate": rate_text(setting.rate, setting.period_seconds) if setting.rate else None,
    }
