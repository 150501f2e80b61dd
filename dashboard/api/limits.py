"""Limits of keys in the API: what may run at once and how often, and who holds the slots."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Field, Query, Router, Schema

from dashboard import limits
from dashboard.api.base import needs, only, who
from dashboard.api.queues import RATE
from dashboard.api.shared import PRINTABLE, Body, Changed, Name, ReasonText
from dashboard.limits import CAP, HOLDERS, SHOWN, KeyLimit
from tasks.models import SLOTS
from tasks.operations.queues import set_limit
from tasks.support.durations import rate_text
from tasks.support.reading import LONGEST_NAME

SEE, CONFIGURE = "tasks.view_limit", "tasks.configure_limit"
router = Router(tags=["Limits"])


class Holder(Schema):
    """A running task that holds a slot of the key."""

    id: int = Field(description="The task.", examples=[4711])
    task_path: str = Field(examples=["shop.tasks.charge"])
    worker_id: str = Field(examples=["w7f3a2"])
    since: datetime


class LimitItem(Schema):
    """One key: what it allows and what uses it."""

    key: str = Field(examples=["tenant-7"])
    max_running: int | None = Field(description="How many may run at once. Null: any number.", examples=[3])
    rate: str | None = Field(description=RATE, examples=["100/m"])
    is_set: bool = Field(description="True if an operator set a number, which goes before the declared one.")
    paused: bool
    paused_by: str = Field(examples=["anna"])
    running: int = Field(description=f"Running tasks of the key, counted up to {CAP}.", examples=[3])
    holders: list[Holder] = Field(description=f"The first {HOLDERS} of them.")
    waiting: int = Field(description=f"Due tasks of the key, counted up to {CAP}.", examples=[40])
    next_at: datetime | None = Field(description="When the rate allows the next start.")

    @classmethod
    def of(cls, limit: KeyLimit) -> dict[str, Any]:
        same = ("key", "is_set", "paused", "paused_by", "running", "waiting", "next_at")
        return {
            **{name: getattr(limit, name) for name in same},
            "max_running": limit.most,
            "rate": rate_text(*limit.starts) if limit.starts else None,
            "holders": [holder._asdict() for holder in limit.holders],
        }


class LimitList(Schema):
    items: list[LimitItem]
    next: str | None = Field(description="Pass it as `cursor` for the next page.", examples=[None])


class LimitSettings(Body):
    """The changes; a field that is left out stays as it is, and null stands for what tasks declare."""

    max_running: int | None = Field(None, ge=1, le=SLOTS, examples=[3])
    rate: str | None = Field(None, pattern=r"^[1-9][0-9]{0,5}/[smhd]$", description=RATE, examples=["100/m"])
    paused: bool = Field(False, description="True: no task of the key starts.")
    reason: ReasonText = ""


@router.get("", response=LimitList, summary="List the limits of keys")
def list_limits(
    request: HttpRequest,
    q: str = Query("", max_length=LONGEST_NAME, pattern=PRINTABLE, description="Only keys that contain this text."),
    cursor: str = Query("", max_length=LONGEST_NAME, pattern=PRINTABLE, description="`next` of the page before."),
) -> dict[str, Any]:
    """The keys that have a limit or are in use, by name."""
    needs(request, SEE)
    only(request, "q", "cursor")
    names = limits.keys(q, cursor)
    found = limits.limits(names[:SHOWN])
    return {"items": map(LimitItem.of, found), "next": found[-1].key if len(names) > SHOWN else None}


@router.post("/{path:key}/configure", response=Changed, summary="Configure the limit of a key")
def configure_limit(request: HttpRequest, key: Name, body: LimitSettings) -> dict[str, bool]:
    """Set how many run at once and how many start in a period, and pause or resume the key. Running tasks go on."""
    needs(request, CONFIGURE)
    return {"changed": set_limit(key, who(request), **body.dict(exclude_unset=True))}
