"""Failures in the API: failed attempts by kind, in a chosen time."""

from datetime import datetime
from typing import Any, Literal

from django.http import HttpRequest
from django.utils.datastructures import MultiValueDict
from ninja import Field, Query, Router, Schema

from dashboard import failures
from dashboard.api.base import needs, only
from dashboard.api.shared import condition
from dashboard.failures import PARTS, SHOWN, FailureFilter, Kind
from tasks.support.reading import LONGEST_CONDITION

SEE = "tasks.view_task"
router = Router(tags=["Failures"])


class FailureKind(Schema):
    """Attempts that failed in the same way: same task, same exception, same place."""

    key: str = Field(description="Its hash. `GET /tasks?failure=` finds its tasks.", examples=["3fa4c1d2e5aa"])
    task_path: str = Field(examples=["shop.tasks.charge"])
    exception_class: str = Field(examples=["shop.errors.CardRefused"])
    place: str = Field(examples=["shop/tasks.py:charge_card"])
    number: int = Field(description="Attempts in the chosen time.", examples=[12])
    since: datetime = Field(description="The first one on record.")
    latest: datetime
    trend: list[int] = Field(description=f"Attempts in each of {PARTS} equal parts of the time, oldest first.")
    releases: list[str] = Field(description="The releases of the workers.", examples=[["2026.11.2"]])
    task_id: int = Field(description="A task that failed so.", examples=[4711])

    @classmethod
    def of(cls, kind: Kind) -> dict[str, Any]:
        return {name: getattr(kind, name) for name in cls.model_fields}


class FailureList(Schema):
    items: list[FailureKind]
    next: str | None = Field(None, description="Always null: narrow the time or the text instead.")
    total: int = Field(description=f"Kinds that match; the first {SHOWN} are listed.", examples=[3])


class Chosen(Schema):
    """The time, and a part of it."""

    since: str = Field("24h", max_length=LONGEST_CONDITION, description="An age like `24h`, or a time.")
    until: str = condition("Likewise; empty: now.", "1h")
    q: str = condition("Text in task, exception or place.", "CardRefused")
    queue: str = condition("Only attempts of this queue.", "payouts")
    release: str = condition("Only attempts of this release.", "2026.11.2")
    sort: Literal["last", "count"] = Field("last", description="The latest first, or the most frequent.")


@router.get("", response=FailureList, summary="List failures by kind")
def list_failures(request: HttpRequest, chosen: Query[Chosen]) -> dict[str, Any]:
    """The kinds of failed attempts of a time, with their trend."""
    needs(request, SEE)
    only(request, *Chosen.model_fields)
    params = MultiValueDict({name: [value] for name, value in chosen.dict().items()})
    found = failures.kinds(FailureFilter.from_params(params))
    return {"items": map(FailureKind.of, found), "total": found[0].total if found else 0}
