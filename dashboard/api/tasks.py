"""Tasks in the API: list, detail, the verbs of their pages, changes as they come, and bulk runs."""

import json
import time
from collections.abc import Iterator
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal

from django.core import signing
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.utils.translation import gettext as _
from ninja import Field, Query, Router, Schema, Status

from dashboard.api.base import Changed, Conflict, Invalid, NotThere, needed_edition_of, needs, who
from dashboard.api.shared import PRINTABLE, Name, Reason, ReasonText
from tasks import operations
from tasks.commands.selection import row_of
from tasks.diagnosis import decide, gather
from tasks.exceptions import InternalTask, UnknownTask
from tasks.framework.declaration import PRIORITIES
from tasks.models import FINISHED, Attempt, BulkRun, Task
from tasks.operations import VERBS, Settings, bulk, tokens
from tasks.operations.filters import BIGGEST_ID, InvalidFilter, TaskFilter
from tasks.operations.search import PageCursor, find
from tasks.operations.verb import CHANGED, MISSING, Refusal
from tasks.support.redaction import redact, redact_call

VIEW, ENQUEUE = "tasks.view_task", "tasks.enqueue_task"
MOST, LIMIT = 500, 50
MOST_ATTEMPTS = 50
MOST_STREAMS, STREAM_SECONDS, POLL_SECONDS, BEAT_SECONDS = 20, 300.0, 0.5, 15.0
PREVIEW_SECONDS = 600  # how long a preview may be carried out
SALT = "rowlock.api.bulk"
TaskId = Annotated[int, Field(ge=1, le=BIGGEST_ID)]
Priority = Annotated[int, Field(ge=PRIORITIES[0], le=PRIORITIES[-1])]
Verbs = Literal["recover", "requeue", "edit", "put_back", "quarantine", "cancel"]
router = Router(tags=["Tasks"])
streams: list[float] = []  # one entry for each open stream of this process


class TaskItem(Schema):
    """One task, and the verdict on it: why it does not run, or how it ended."""

    id: int = Field(examples=[4711])
    task: str = Field(examples=["shop.tasks.send_payout"])
    queue: str = Field(examples=["payouts"])
    status: str = Field(examples=["READY"])
    verdict: str | None = Field(description="A key of the closed list of verdicts.", examples=["held_by_key"])
    sentence: str = Field(examples=["Held by #4710."])
    version: int = Field(description="Send it in `If-Match`.", examples=[7])
    priority: int
    attempt: int
    max_attempts: int
    created_at: datetime
    run_after: datetime
    started_at: datetime | None
    finished_at: datetime | None
    worker: str | None = Field(description="The worker that holds it.")
    ordering_key: str | None
    unique_key: str | None
    concurrency_key: str | None

    @classmethod
    def of(cls, task: Task, finding: Any) -> dict[str, Any]:
        same = (
            "id", "status", "version", "priority", "attempt", "max_attempts", "created_at", "run_after", "started_at",
            "finished_at", "ordering_key", "unique_key", "concurrency_key",
        )  # fmt: skip
        row = row_of(task, finding)
        return {
            **{name: getattr(task, name) for name in same},
            "task": task.task_path, "queue": task.queue_name, "worker": task.claimed_by,
            "verdict": row.get("verdict"), "sentence": finding.sentence,
        }  # fmt: skip


class AttemptItem(Schema):
    number: int
    outcome: str
    started_at: datetime | None
    finished_at: datetime | None
    worker: str | None
    exception: str
    traceback: str = Field(description="Without secrets.")


class TaskDetail(TaskItem):
    """One task with its arguments, without secrets, and its latest attempts, the newest first."""

    args: Any
    kwargs: Any
    attempts: list[AttemptItem]
    command: str | None = Field(description="The command that would help.")


class TaskList(Schema):
    items: list[TaskItem]
    next: str | None = Field(description="Send it as `cursor`. Null: this was the last page.", examples=["4700"])
    is_complete: bool = Field(description="False: the search took too long, and goes on from `next`.")


class Filters(Schema):
    """The conditions of the page's list; those of one name may repeat, and any of them may match."""

    id: list[TaskId] = []
    status: list[str] = []
    queue: list[str] = []
    task: list[str] = []
    due: str = ""
    error: str = ""
    failure: str = ""
    older_than: str = Field("", json_schema_extra={"example": "7d"})
    q: str = Field("", description="Text in the arguments.")
    key: str = Field("", description="The ordering key.")
    limit_key: str = Field("", description="The concurrency key.")
    worker: str = ""

    def chosen(self) -> TaskFilter:
        """Raises InvalidFilter."""
        values = self.dict()
        values["limit"] = values.pop("limit_key")
        return TaskFilter.from_params(Pairs(values))


class Pairs:
    """The part of a QueryDict from which a filter is read."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def getlist(self, key: str) -> list[str]:
        found = self.values.get(key) or []
        return [str(value) for value in (found if isinstance(found, list) else [found])]


class Enqueue(Schema):
    """A call of a declared task."""

    task: str = Field(min_length=1, max_length=300, pattern=PRINTABLE, examples=["shop.tasks.send_payout"])
    args: list[Any] = Field([], examples=[[4711]])
    kwargs: dict[str, Any] = {}
    queue: Name | None = None
    priority: Priority | None = None
    run_after: datetime | None = None
    reason: ReasonText = ""


class Enqueued(Schema):
    id: int
    is_new: bool = Field(description="False: this task had the call's unique key.")


class Again(Reason):
    force: bool = Field(False, description="Take it from a live worker too; needs a reason.")


class Move(Reason):
    """What to change; null leaves it."""

    queue: Name | None = None
    priority: Priority | None = None
    run_after: datetime | None = None


class Done(Schema):
    """`done`: it is changed. Else its live worker was asked, and ends it within moments."""

    done: bool
    task: TaskItem


@router.get("", response=TaskList, summary="List tasks")
def list_tasks(
    request: HttpRequest,
    filters: Query[Filters],
    cursor: Annotated[int | None, Field(ge=1, le=BIGGEST_ID)] = None,
    limit: Annotated[int, Field(ge=1, le=MOST)] = LIMIT,
) -> dict[str, Any]:
    """The tasks that match, the newest first. A search that no index serves ends after 2 s with `next`."""
    needs(request, VIEW)
    listing = find(chosen_of(filters), PageCursor(before=cursor), limit=limit)
    facts = gather(listing.rows)
    return {
        "items": [TaskItem.of(task, decide(task, facts)) for task in listing.rows],
        "next": str(listing.older) if listing.older else None,
        "is_complete": listing.looked_down_to is None,
    }


@router.post("", response={201: Enqueued, 200: Enqueued}, summary="Enqueue a task")
def enqueue_task(request: HttpRequest, body: Enqueue) -> Status:
    """Declared tasks only. With a unique key that another task has, that one is the answer."""
    needs(request, ENQUEUE)
    options: dict[str, Any] = {"queue_name": body.queue, "priority": body.priority, "run_after": body.run_after}
    try:
        ids = operations.enqueue(
            body.task, who(request), args=body.args, kwargs=body.kwargs, reason=body.reason, **options
        )
    except (UnknownTask, InternalTask) as error:
        raise Invalid("task", str(error)) from error
    except (ValueError, TypeError) as error:
        raise Invalid("args", str(error)) from error
    status = HTTPStatus.OK if ids.duplicates else HTTPStatus.CREATED
    return Status(status, {"id": ids[0], "is_new": not ids.duplicates})


@router.get("/{int:task_id}", response=TaskDetail, summary="Show a task")
def get_task(request: HttpRequest, task_id: TaskId, response: HttpResponse) -> dict[str, Any]:
    """Its version is the ETag."""
    needs(request, VIEW)
    task = existing(task_id)
    response["ETag"] = f'"{task.version}"'
    finding = decide(task, gather([task]))
    args, kwargs = redact_call(task.task_path, task.args, task.kwargs)
    attempts = Attempt.objects.filter(task=task).order_by("-id")[:MOST_ATTEMPTS]
    own = {"args": args, "kwargs": kwargs, "command": finding.command or None}
    return {**TaskItem.of(task, finding), **own, "attempts": [attempt_of(attempt) for attempt in attempts]}


@router.post("/{int:task_id}/requeue", response={200: Done, 202: Done}, summary="Run a task again")
def requeue_task(request: HttpRequest, task_id: TaskId, body: Again) -> Status:
    return act(request, "requeue", task_id, Settings(reason=body.reason, force=body.force))


@router.post("/{int:task_id}/cancel", response={200: Done, 202: Done}, summary="Cancel a task")
def cancel_task(request: HttpRequest, task_id: TaskId, body: Reason) -> Status:
    """202: a live worker holds it and ends it within moments."""
    return act(request, "cancel", task_id, Settings(reason=body.reason))


@router.post("/{int:task_id}/edit", response={200: Done, 202: Done}, summary="Move a task")
def edit_task(request: HttpRequest, task_id: TaskId, body: Move) -> Status:
    """Another queue, priority or time for a task that waits."""
    settings = Settings(reason=body.reason, queue_name=body.queue, priority=body.priority, run_after=body.run_after)
    return act(request, "edit", task_id, settings)


@router.post("/{int:task_id}/recover", response={200: Done, 202: Done}, summary="Take a task back")
def recover_task(request: HttpRequest, task_id: TaskId, body: Reason) -> Status:
    """From a worker that is dead or silent for too long."""
    return act(request, "recover", task_id, Settings(reason=body.reason))


@router.get("/{int:task_id}/events", summary="Follow a task", response={200: None}, openapi_extra={
    "responses": {200: {"description": "Its changes", "content": {"text/event-stream": {"schema": {"type": "string"}}}}}
})  # fmt: skip
def follow_task(request: HttpRequest, task_id: TaskId) -> StreamingHttpResponse:
    """`task` events until it has ended, or for five minutes; a client connects again by itself."""
    needs(request, VIEW)
    existing(task_id)
    if len(streams) >= MOST_STREAMS:
        raise Conflict(f"{MOST_STREAMS} streams are open in this web process: ask again later.")
    response = StreamingHttpResponse(events(task_id), content_type="text/event-stream")
    response["Cache-Control"] = "no-store"
    response["X-Accel-Buffering"] = "no"
    return response


def events(task_id: int) -> Iterator[str]:
    """An event for each new version or verdict, a comment while nothing happens."""
    streams.append(time.monotonic())
    try:
        ends, said, seen = time.monotonic() + STREAM_SECONDS, time.monotonic(), None
        while time.monotonic() < ends:
            task = Task.objects.filter(pk=task_id).first()
            if task is None:
                yield "event: gone\ndata: {}\n\n"
                return
            finding = decide(task, gather([task]))
            state = (task.version, finding.sentence)
            if state != seen:
                item = TaskItem(**TaskItem.of(task, finding)).model_dump(mode="json")
                yield f"id: {task.version}\nevent: task\ndata: {json.dumps(item)}\n\n"
                seen, said = state, time.monotonic()
            elif time.monotonic() - said > BEAT_SECONDS:
                yield ": waiting\n\n"
                said = time.monotonic()
            if task.status in FINISHED:
                return
            time.sleep(POLL_SECONDS)
    finally:
        streams.pop()
        close_old_connections()


class Preview(Schema):
    """How many tasks a bulk run would reach; `token` carries it out as long as it is valid."""

    number: int
    is_complete: bool = Field(description="False: there are more.")
    by_status: dict[str, int]
    token: str


class Bulk(Again):
    token: str = Field(min_length=1, max_length=20_000, description="That of the preview.")
    queue: Name | None = None
    priority: Priority | None = None
    run_after: datetime | None = None
    spread_minutes: Annotated[float, Field(gt=0, le=10_080)] | None = None


class Run(Schema):
    """A bulk run, which a worker carries out; `id` is null if nothing matched."""

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
    chosen, upto = bulk.subject(verb, chosen_of(filters)), bulk.highest_id()
    if not chosen.statuses:
        raise Invalid("status", _("This action changes no task in these states."))
    found = bulk.tally(chosen, upto)
    token = signing.dumps([verb, chosen.as_query(), upto], salt=SALT)
    by_status = dict(found.by_status)
    return {"number": found.number, "is_complete": found.is_complete, "by_status": by_status, "token": token}


@router.post("/bulk/{verb}", response={202: Run}, summary="Start a bulk run")
def start_bulk(request: HttpRequest, verb: Verbs, body: Bulk) -> Status:
    """Carry out what the preview showed: tasks that have come since are left alone."""
    needs(request, VERBS[verb].right)
    try:
        signed, query, upto = signing.loads(body.token, salt=SALT, max_age=PREVIEW_SECONDS)
    except signing.BadSignature as error:
        raise Invalid("token", "The preview is over, or its token is not whole: preview again.") from error
    if signed != verb:
        raise Invalid("token", f"This is the preview of {signed}: preview {verb}.")
    settings = Settings(
        reason=body.reason, force=body.force, queue_name=body.queue, priority=body.priority, run_after=body.run_after,
        spread_minutes=body.spread_minutes,
    )  # fmt: skip
    try:
        VERBS[verb](who(request), settings)
    except ValueError as error:
        raise Invalid("request", str(error)) from error
    run_id = bulk.request(verb, TaskFilter.from_query(query), upto, settings, who(request), tokens.new_token())
    return Status(HTTPStatus.ACCEPTED, BulkRun.objects.get(pk=run_id))


@router.get("/runs/{int:run_id}", response=Run, summary="Show a bulk run")
def get_run(request: HttpRequest, run_id: TaskId) -> BulkRun:
    needs(request, VIEW)
    run = BulkRun.objects.filter(pk=run_id).first()
    if run is None:
        raise NotThere(f"There is no bulk run {run_id}: it was pruned, or the id is wrong.")
    return run


def chosen_of(filters: Filters) -> TaskFilter:
    try:
        return filters.chosen()
    except InvalidFilter as error:
        raise Invalid("query", str(error)) from error


def existing(task_id: int) -> Task:
    task = Task.objects.filter(pk=task_id).first()
    if task is None:
        raise NotThere(f"#{task_id}: {MISSING.sentence}.")
    return task


def attempt_of(attempt: Attempt) -> dict[str, Any]:
    same = ("number", "outcome", "started_at", "finished_at")
    return {
        **{name: getattr(attempt, name) for name in same},
        "worker": attempt.worker_id, "exception": attempt.exception_class, "traceback": redact(attempt.traceback),
    }  # fmt: skip


def act(request: HttpRequest, verb: str, task_id: int, settings: Settings) -> Status:
    """Perform a verb on one task at the version that the caller has seen."""
    needs(request, VERBS[verb].right)
    edition = needed_edition_of(request)
    try:
        result = VERBS[verb].act([task_id], who(request), settings, versions={task_id: edition})
    except ValueError as error:
        raise Invalid("request", str(error)) from error
    if refusal := result.refused.get(task_id):
        raise refused(task_id, refusal)
    task = existing(task_id)
    status = HTTPStatus.OK if result.done else HTTPStatus.ACCEPTED
    return Status(status, {"done": bool(result.done), "task": TaskItem.of(task, decide(task, gather([task])))})


def refused(task_id: int, refusal: Refusal) -> Exception:
    kind = {MISSING.code: NotThere, CHANGED.code: Changed}.get(refusal.code, Conflict)
    sentence = f"#{task_id} not changed: {refusal.sentence}."
    return kind(sentence, ETag=f'"{refusal.version}"') if refusal.version is not None else kind(sentence)
