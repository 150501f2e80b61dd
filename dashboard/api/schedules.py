"""Schedules in the API: list, add, edit, pause, resume, run and delete them."""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal

from django.db.models import Q
from django.http import HttpRequest
from ninja import Field, Query, Router, Schema, Status
from pydantic import AwareDatetime

from dashboard.api.base import Invalid, edition_of, needs, who
from dashboard.api.shared import PRINTABLE, SEEN_IF_GIVEN, Body, Changed, Name, Reason, ReasonText
from dashboard.live import snapshots
from dashboard.schedules import SEE
from dashboard.schedules.rows import LONGEST_SEARCH, PAGE, Search
from tasks.exceptions import UnknownTask
from tasks.models import Schedule
from tasks.models.schedule import LONGEST_NAME
from tasks.operations import schedules
from tasks.operations.schedules import RIGHT_TO_EDIT, RIGHT_TO_PAUSE, RIGHT_TO_RUN
from tasks.support import reading
from tasks.support.recurrence import LONGEST_EVERY

router = Router(tags=["Schedules"])
ScheduleName = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME, pattern=PRINTABLE)]


class ScheduleItem(Schema):
    """One schedule."""

    name: str = Field(examples=["nightly-report"])
    task_path: str = Field(examples=["shop.tasks.report"])
    cron: str | None = Field(examples=["0 3 * * *"])
    every_seconds: int | None = Field(examples=[None])
    timezone: str = Field(examples=["Europe/Berlin"])
    missed: str = Field(examples=["once"])
    overlap: str = Field(examples=["skip"])
    paused: bool
    paused_by: str = Field(examples=[""])
    problem: str = Field(description="Why Rowlock itself paused it.", examples=[""])
    state: str = Field(description="`on`, or why it does nothing.", examples=["on"])
    late: bool = Field(description="True if a tick is due for longer than the grace.")
    next_at: datetime | None
    last_at: datetime | None
    last_outcome: str = Field(examples=["enqueued"])
    last_task_id: int | None = Field(examples=[4711])
    ends_at: datetime | None
    ended_at: datetime | None
    declared: bool = Field(description="True if code declares it.")
    overridden: list[str] = Field(description="Settings that differ from the declared ones.", examples=[[]])
    edition: int = Field(description="Grows when a setting changes. Send it as `If-Match`.", examples=[2])

    @classmethod
    def of(cls, row: Schedule, now: datetime) -> dict[str, Any]:
        own = {"declared", "state", "late"}
        return {
            **{name: getattr(row, name) for name in cls.model_fields if name not in own},
            "declared": row.declared is not None,
            "state": schedules.state(row, now),
            "late": schedules.is_late(row, now),
        }


class ScheduleList(Schema):
    items: list[ScheduleItem]
    next: str | None = Field(description="Pass it as `cursor` for the next page.", examples=[None])


class Settings(Body):
    """When and how a schedule runs its task; a field that is left out stays as it is."""

    cron: str | None = Field(None, max_length=200, description="Five fields.", examples=["0 3 * * *"])
    every: int | None = Field(None, ge=1, le=LONGEST_EVERY, description="Seconds, instead of `cron`.")
    timezone: str = Field("UTC", max_length=100, examples=["Europe/Berlin"])
    missed: Literal["skip", "once", "all"] = Field("skip", description="Times missed by more than a minute.")
    overlap: Literal["skip", "queue", "allow"] = Field("skip", description="While the last task is unfinished.")
    args: list[Any] = Field([], description="Positional arguments.", examples=[[]])
    kwargs: dict[str, Any] = Field({}, description="Keyword arguments.", examples=[{"region": "eu"}])
    queue_name: Name | None = Field(None, description="Null: as the task declares.")
    priority: int | None = Field(None, ge=-100, le=100, description="Null: as the task declares.")
    ends_at: AwareDatetime | None = Field(None, description="No tick after it.")
    reason: ReasonText = ""

    def given(self) -> dict[str, Any]:
        """The settings in the request, without the reason."""
        return self.dict(exclude_unset=True, exclude={"reason", "name", "task_path"})


class NewSchedule(Settings):
    """A schedule to add."""

    name: ScheduleName
    task_path: str = Field(min_length=1, max_length=reading.LONGEST_PATH, examples=["shop.tasks.report"])
    paused: bool = False


class Enqueued(Schema):
    task_id: int = Field(examples=[4711])


@router.get("", response=ScheduleList, summary="List the schedules")
def list_schedules(
    request: HttpRequest,
    q: str = Query("", max_length=LONGEST_SEARCH, pattern=PRINTABLE, description="Text in name or task."),
    state: Literal["", "late", "broken", "paused", "held", "over"] = Query("", description="Only those in this state."),
    cursor: str = Query("", max_length=LONGEST_NAME, pattern=PRINTABLE, description="`next` of the page before."),
) -> dict[str, Any]:
    """Schedules by name."""
    needs(request, SEE)
    search, now = Search(q.strip(), state, cursor), snapshots.of(request).now
    found = Schedule.objects.filter(search.matching(), search.conditions(now)[state], Q(name__gt=cursor))
    rows = list(found.order_by("name")[: PAGE + 1])
    return {
        "items": [ScheduleItem.of(row, now) for row in rows[:PAGE]],
        "next": rows[PAGE - 1].name if len(rows) > PAGE else None,
    }


@router.post("", response={201: ScheduleItem}, summary="Add a schedule")
def add_schedule(request: HttpRequest, body: NewSchedule) -> Status:
    """Enqueue a registered task again and again."""
    needs(request, SEE, RIGHT_TO_EDIT)
    try:
        row = schedules.add(body.name, body.task_path, who(request), body.given(), reason=body.reason)
    except UnknownTask as error:
        raise Invalid("task_path", str(error)) from error
    return Status(201, ScheduleItem.of(row, schedules.now()))


@router.post("/{path:name}/edit", response=Changed, openapi_extra=SEEN_IF_GIVEN, summary="Edit a schedule")
def edit_schedule(request: HttpRequest, name: ScheduleName, body: Settings) -> dict[str, bool]:
    needs(request, SEE, RIGHT_TO_EDIT)
    who_, edition = who(request), edition_of(request)
    return {"changed": schedules.edit(name, who_, body.given(), edition=edition, reason=body.reason)}


@router.post("/{path:name}/pause", response=Changed, openapi_extra=SEEN_IF_GIVEN, summary="Pause a schedule")
def pause_schedule(request: HttpRequest, name: ScheduleName, body: Reason) -> dict[str, bool]:
    return {"changed": act(request, schedules.pause, RIGHT_TO_PAUSE, name, body)}


@router.post("/{path:name}/resume", response=Changed, openapi_extra=SEEN_IF_GIVEN, summary="Resume a schedule")
def resume_schedule(request: HttpRequest, name: ScheduleName, body: Reason) -> dict[str, bool]:
    """Its setting `missed` says what becomes of the times of the pause."""
    return {"changed": act(request, schedules.resume, RIGHT_TO_PAUSE, name, body)}


@router.post("/{path:name}/run", response=Enqueued, openapi_extra=SEEN_IF_GIVEN, summary="Run a schedule now")
def run_schedule(request: HttpRequest, name: ScheduleName, body: Reason) -> dict[str, int]:
    """Enqueue its task at once, even if it is paused. Its next time stays."""
    return {"task_id": act(request, schedules.run_now, RIGHT_TO_RUN, name, body)}


@router.post("/{path:name}/delete", response=Changed, openapi_extra=SEEN_IF_GIVEN, summary="Delete a schedule")
def delete_schedule(request: HttpRequest, name: ScheduleName, body: Reason) -> dict[str, bool]:
    """Its ticks and tasks stay. Refused while code declares it."""
    return {"changed": act(request, schedules.delete, RIGHT_TO_EDIT, name, body)}


@router.get("/{path:name}", response=ScheduleItem, summary="Show a schedule")
def get_schedule(request: HttpRequest, name: ScheduleName) -> dict[str, Any]:
    needs(request, SEE)
    return ScheduleItem.of(schedules.find(name), schedules.now())


def act(request: HttpRequest, verb: Callable[..., Any], right: str, name: str, body: Reason) -> Any:
    """Perform the verb on the schedule, as it was seen if the request has `If-Match`."""
    needs(request, SEE, right)
    return verb(name, who(request), edition=edition_of(request), reason=body.reason)
