"""Bulk runs in the API: a preview, the run that carries it out, and its end."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal

from django.core import signing
from django.http import HttpRequest
from ninja import Field, Query, Router, Schema, Status

from dashboard.api.base import Invalid, needs, only, who
from dashboard.api.shared import Changed, Name
from dashboard.api.tasks import Again, Filters, Priority, TaskId, Why, check
from dashboard.task_pages import VIEW
from dashboard.task_pages.actions import PAGE_ACTIONS
from dashboard.task_pages.bulk import existing_run
from tasks.models import BulkRun
from tasks.operations import VERBS, Settings, bulk, tokens
from tasks.operations.filters import TaskFilter

PREVIEW_SECONDS = 600  # how long a preview may be carried out
SALT = "rowlock.api.bulk"
Verbs = Literal["recover", "requeue", "edit", "put_back", "quarantine", "cancel"]
router = Router(tags=["Bulk runs"])


class Preview(Schema):
    """How many tasks a bulk run would reach; `token` carries it out as long as it is valid."""

    number: int
    is_complete: bool = Field(description="False: there are more.")
    by_status: dict[str, int]
    token: str


class Bulk(Again):
    """The token of a preview, and the settings of its verb."""

    token: str = Field(min_length=1, max_length=20_000, description="That of the preview.")
    queue: Name | None = None
    priority: Priority | None = None
    run_after: datetime | None = None
    spread_minutes: Annotated[float, Field(gt=0, le=10_080)] | None = None


class Run(Schema):
    """A bulk run, which a worker carries out."""

    id: int
    action: str
    filter: str
    total: int | None
    looked: int
    done: int
    asked: int
    refused: int
    created_at: datetime
    finished_at: datetime | None


@router.get("/bulk/{verb}", response=Preview, summary="Preview a bulk run")
def preview_bulk(request: HttpRequest, verb: Verbs, filters: Query[Filters]) -> dict[str, Any]:
    """Count the tasks that match and that the verb can change."""
    needs(request, VIEW, VERBS[verb].right)
    only(request, *Filters.model_fields)
    asked, upto = filters.chosen(), bulk.highest_id()
    if asked.is_empty:
        raise Invalid("status", "Give a condition: no action reaches every task there is.", part="query")
    chosen = bulk.subject(verb, asked)
    if not chosen.statuses:
        raise Invalid("status", "This action changes no task in these states.", part="query")
    found = bulk.tally(chosen, upto)
    token = signing.dumps([verb, chosen.as_query(), upto, tokens.new_token()], salt=SALT)
    by_status = dict(found.by_status)
    return {"number": found.number, "is_complete": found.is_complete, "by_status": by_status, "token": token}


@router.post("/bulk/{verb}", response={202: Run}, summary="Start a bulk run")
def start_bulk(request: HttpRequest, verb: Verbs, body: Bulk) -> Status:
    """Carry out what the preview showed, once for each preview: tasks that have come since are left alone."""
    needs(request, VIEW, VERBS[verb].right)
    try:
        signed, query, upto, once = signing.loads(body.token, salt=SALT, max_age=PREVIEW_SECONDS)
    except signing.BadSignature as error:
        raise Invalid("token", "The preview is over, or its token is not whole: preview again.") from error
    if signed != verb:
        raise Invalid("token", f"This is the preview of {signed}: preview {verb}.")
    settings = Settings(
        reason=body.reason, force=body.force, queue_name=body.queue, priority=body.priority, run_after=body.run_after,
        spread_minutes=body.spread_minutes,
    )  # fmt: skip
    check(PAGE_ACTIONS[verb], settings)
    run_id = bulk.request(verb, TaskFilter.from_query(query), upto, settings, who(request), once)
    return Status(HTTPStatus.ACCEPTED, BulkRun.objects.get(pk=run_id))


@router.get("/runs/{int:run_id}", response=Run, summary="Show a bulk run")
def get_run(request: HttpRequest, run_id: TaskId) -> BulkRun:
    needs(request, VIEW)
    return existing_run(run_id)


@router.post("/runs/{int:run_id}/stop", response=Changed, summary="Stop a bulk run")
def stop_run(request: HttpRequest, run_id: TaskId, body: Why) -> dict[str, bool]:
    """It ends after the current chunk; what it has changed stays."""
    needs(request, VIEW)
    run = existing_run(run_id)
    needs(request, VERBS[run.action].right)
    return {"changed": bulk.stop(run, who(request), reason=body.reason)}
