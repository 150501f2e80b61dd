"""Lab runs in the API: list, show, start and stop them."""

from datetime import datetime
from typing import Any, Literal

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest
from ninja import Field, Query, Router, Schema, Status

from dashboard.api.base import Invalid, needs, only, who
from dashboard.api.shared import Body, Changed, Reason
from dashboard.lab import requests, runner
from dashboard.lab.requests import MOST_RUNS, PAGE_LIMITS, LabForm
from dashboard.lab.worker import LIMITS, Plan
from dashboard.models import LabRun
from dashboard.views.lab import LARGE, RUN, SEE
from tasks.operations.filters import BIGGEST_ID
from tasks.operations.tokens import new_token

PAGE = 50
router = Router(tags=["Lab"])


class Run(Schema):
    """One run of a pattern."""

    id: int = Field(examples=[12])
    batch: str = Field(description="Runs of one request share it.")
    pattern: str = Field(examples=["double_checked"])
    plan: dict[str, Any] = Field(description="Its load.", examples=[{"workers": 4, "items": 200}])
    state: str = Field(description="`waiting`, `running`, `finished` or `failed`.", examples=["finished"])
    actor: str = Field(examples=["anna"])
    task_id: int | None = Field(description="The task that runs it.", examples=[4711])
    effects: int = Field(description="Items handled so far.", examples=[200])
    error: str = Field(examples=[""])
    result: dict[str, Any] | None = Field(
        description="Its numbers, as `run_pattern --json` names them.", examples=[{"processed": 200, "duplicates": 0}]
    )
    server: str = Field(examples=["PostgreSQL 16.4, 8 CPUs"])
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    stop_requested_at: datetime | None


class RunList(Schema):
    items: list[Run]
    next: str | None = Field(description="Pass it as `cursor` for older runs.", examples=[None])


def number(name: str, text: str = "") -> Any:
    """A number of the load, in the bounds that the page has."""
    least, most = LIMITS[name]
    return Field(getattr(Plan, name), ge=least, le=PAGE_LIMITS.get(name, most), description=text)


class Load(Body):
    """The runs to start: one for each pattern, or for each pattern and value."""

    patterns: list[str] = Field(
        [], max_length=MOST_RUNS, description="Empty: every pattern.", examples=[["skip_locked_claim"]]
    )
    workers: int = number("workers")
    items: int = number("items")
    work_ms: int = number("work_ms", "Duration of the work on each item.")
    kill: int = number("kill", "Workers ended with SIGKILL.")
    cut: int = number("cut", "Sessions ended by the server.")
    outside_lockers: int = number("outside_lockers", "Other programs that lock the same rows.")
    remote_ms: int = number("remote_ms", "Duration of a call to another service.")
    seed: int = number("seed")
    seconds: int = number("seconds", "Time limit of each run.")
    vary: Literal["", "workers", "work_ms", "items", "outside_lockers", "remote_ms", "kill"] = Field(
        "", description="The number to vary.", examples=["workers"]
    )
    values: list[int] = Field([], max_length=20, description="Over these values.", examples=[[1, 2, 4]])
    alongside: bool = Field(False, description="Start beside another run: each slows the other down.")


class Started(Schema):
    batch: str
    items: list[Run]


@router.get("/runs", response=RunList, summary="List the lab runs")
def list_runs(
    request: HttpRequest,
    cursor: int | None = Query(None, ge=1, le=BIGGEST_ID, description="`next` of the page before."),
) -> dict[str, Any]:
    """Runs, newest first."""
    needs(request, SEE)
    only(request, "cursor")
    runs = LabRun.objects.defer(*LARGE, "spans", "waits").order_by("-pk")
    found = list((runs.filter(pk__lt=cursor) if cursor else runs)[: PAGE + 1])
    return {"items": found[:PAGE], "next": str(found[PAGE - 1].pk) if len(found) > PAGE else None}


@router.post("/runs", response={201: Started}, summary="Start lab runs")
def start_runs(request: HttpRequest, body: Load) -> Status:
    """A worker runs them one after the other, on rows of their own. 403 where the lab is off."""
    needs(request, SEE, RUN)
    if not runner.is_allowed():
        raise PermissionDenied("The lab is off on a database of your own: set ROWLOCK_LAB=1 to allow it.")
    form = LabForm({**body.dict(), "values": ", ".join(map(str, body.values))})
    if not form.is_valid():
        raise Invalid({name: str(errors[0]) for name, errors in form.errors.items()})
    batch = requests.request_runs(form.plans(), new_token(), who(request))
    return Status(201, {"batch": batch, "items": list(LabRun.objects.filter(batch=batch).order_by("pk"))})


@router.get("/runs/{run_id}", response=Run, summary="Show a lab run")
def get_run(request: HttpRequest, run_id: int) -> LabRun:
    needs(request, SEE)
    return find(run_id)


@router.post("/runs/{run_id}/stop", response=Changed, summary="Stop a lab run")
def stop_run(request: HttpRequest, run_id: int, body: Reason) -> dict[str, bool]:
    """Ask it to end; its results so far are measured."""
    needs(request, SEE, RUN)
    return {"changed": requests.stop(find(run_id), who(request), reason=body.reason)}


def find(run_id: int) -> LabRun:
    found = LabRun.objects.filter(pk=run_id).first()
    if found is None:
        raise Http404(f"There is no lab run {run_id}.")
    return found
