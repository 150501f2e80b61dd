"""The audit in the API: who did what to which row, when and why."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.utils.datastructures import MultiValueDict
from ninja import Field, Query, Router, Schema

from dashboard.api.base import needs, only
from dashboard.api.shared import condition
from dashboard.views.audit import SEE, AuditFilter, bounds
from tasks.operations.filters import BIGGEST_ID
from tasks.operations.search import PageCursor, find

router = Router(tags=["Audit"])


class Entry(Schema):
    """One intervention on one target."""

    id: int = Field(examples=[90210])
    at: datetime
    actor: str = Field(examples=["anna"])
    source: str = Field(description="Where it was done.", examples=["page"])
    role: str = Field(description="The database role.", examples=["rowlock"])
    action: str = Field(examples=["requeue"])
    target: str = Field(examples=["task:4711"])
    reason: str = Field(examples=["the bank is up again"])
    version_before: int | None = Field(examples=[4])
    version_after: int | None = Field(examples=[5])


class EntryList(Schema):
    items: list[Entry]
    next: str | None = Field(description="Pass it as `cursor` for older entries.", examples=["90160"])


class Chosen(Schema):
    """Conditions that an entry must meet."""

    actor: str = condition("The person.", "anna")
    action: str = condition("The verb.", "requeue")
    target: str = condition("As entries write it.", "task:4711")
    since: str = condition("An age like `24h`, or a time.", "7d")
    until: str = condition("Likewise.", "1h")
    enqueues: bool = Field(False, description="Also the enqueues by hand.")


@router.get("", response=EntryList, summary="List the audit")
def list_audit(
    request: HttpRequest,
    chosen: Query[Chosen],
    cursor: int | None = Query(None, ge=1, le=BIGGEST_ID, description="`next` of the page before."),
    limit: int = Query(50, ge=1, le=500, description="Entries on a page."),
) -> dict[str, Any]:
    """Interventions, newest first. A search takes two seconds at most; `next` leads on from where it stopped."""
    needs(request, SEE)
    only(request, *Chosen.model_fields, "cursor", "limit")
    asked = {**chosen.dict(), "enqueues": "1" if chosen.enqueues else ""}
    wanted = AuditFilter.from_params(MultiValueDict({name: [value] for name, value in asked.items()}))
    found = find(wanted, PageCursor(before=cursor), bounds=bounds, limit=limit)
    return {"items": found.rows, "next": None if found.older is None else str(found.older)}
