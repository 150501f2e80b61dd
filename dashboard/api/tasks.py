"""Tasks in the API: list, detail, and the verbs of their pages."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal

from django.http import HttpRequest, HttpResponse
from ninja import Field, Query, Router, Schema, Status
from pydantic import BaseModel

from dashboard.api.base import Changed, Conflict, Invalid, NotThere, Problem, needed_edition_of, needs, only, who
from dashboard.api.shared import PRINTABLE, SEEN, Name, NeededReason, Reason, ReasonText
from dashboard.task_pages import VIEW
from dashboard.task_pages.actions import PAGE_ACTIONS, PageAction, Seen
from dashboard.task_pages.enqueue import ENQUEUE, chosen_task
from tasks import operations
from tasks.compat import InvalidTask
from tasks.diagnosis import decide, gather
from tasks.exceptions import InternalTask, UnknownTask
from tasks.framework.declaration import PRIORITIES
from tasks.framework.redacted_calls import redact_call
from tasks.models import Attempt, Intervention, Task, TaskStatus, find_task
from tasks.operations import Settings
from tasks.operations.archived import judge
from tasks.operations.filters import BIGGEST_ID, InvalidFilter, TaskFilter
from tasks.operations.search import OLDEST_FIRST, PageCursor, find
from tasks.operations.verb import CHANGED, LOCKED, MISSING, Refusal
from tasks.support import audit
from tasks.support.redaction import redact

MOST, LIMIT = 500, 50
PAYLOAD = ("args", "kwargs", "return_value")  # may be megabytes, and no list shows them
MOST_ATTEMPTS = 50
MOST_INTERVENTIONS = 20  # of one task since a version
TaskId = Annotated[int, Field(ge=1, le=BIGGEST_ID)]
Priority = Annotated[int, Field(ge=PRIORITIES[0], le=PRIORITIES[-1])]
router = Router(tags=["Tasks"])


class TaskItem(BaseModel):  # no Schema of ninja, which wraps each row: that is a fifth of a page of 50
    """One task, and the verdict on it: why it does not run, or how it ended."""

    id: int = Field(examples=[4711])
    task_path: str = Field(examples=["shop.tasks.send_payout"])
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
            "id", "task_path", "status", "version", "priority", "attempt", "max_attempts", "created_at", "run_after",
            "started_at", "finished_at", "ordering_key", "unique_key", "concurrency_key",
        )  # fmt: skip
        return {
            **{name: getattr(task, name) for name in same},
            "queue": task.queue_name, "worker": task.claimed_by,
            "verdict": finding.verdict.value, "sentence": finding.sentence,
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
    return_value: Any = Field(description="Of a completed task.")
    attempts: list[AttemptItem]
    archived: bool = Field(description="True once it is in the archive, where it never changes again.")
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
    older_than: str = Field("", description="Created longer ago.", json_schema_extra={"example": "7d"})
    q: str = Field("", description="Text in the arguments.")
    key: str = Field("", description="The ordering key.")
    limit_key: str = Field("", description="The concurrency key.")
    worker: str = ""

    def chosen(self) -> TaskFilter:
        """Raises Invalid with each fault."""
        faults, values = {}, self.dict()
        values["limit"] = values.pop("limit_key")
        for name, value in values.items():
            try:
                TaskFilter.from_params(Pairs({name: value}))
            except InvalidFilter as error:
                faults[name] = str(error)
        if faults:
            raise Invalid(faults, part="query")
        return TaskFilter.from_params(Pairs(values))


class Pairs:
    """The part of a QueryDict from which a filter is read."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def getlist(self, key: str) -> list[str]:
        found = self.values.get(key) or []
        return [str(value) for value in (found if isinstance(found, list) else [found])]


class Enqueue(Schema, extra="forbid"):
    """A call of a declared task."""

    task_path: str = Field(min_length=1, max_length=300, pattern=PRINTABLE, examples=["shop.tasks.send_payout"])
    args: list[Any] = Field([], examples=[[4711]])
    kwargs: dict[str, Any] = {}
    queue: Name | None = None
    priority: Priority | None = None
    run_after: datetime | None = None
    ordering_key: Name | None = None
    unique_key: Name | None = None
    reason: ReasonText = ""


class Enqueued(Schema):
    id: int
    is_new: bool = Field(description="False: this task had the call's unique key.")


class Again(Reason, extra="forbid"):
    force: bool = Field(False, description="Take it from a live worker too; needs a reason.")


class Why(Reason, extra="forbid"):
    """Nothing but a reason."""


class NeededWhy(NeededReason, extra="forbid"):
    """Nothing but a reason, which must be given."""


class Move(Reason, extra="forbid"):
    """The changes; null leaves it."""

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
    cursor: Annotated[int | None, Field(ge=1, le=BIGGEST_ID, description="`next` of the page before.")] = None,
    limit: Annotated[int, Field(ge=1, le=MOST)] = LIMIT,
    sort: Literal["-id", "id"] = "-id",
) -> dict[str, Any]:
    """The tasks that match, the newest first, or the oldest with `sort=id`.

    A search that no index serves ends after 2 s: a page may be short, or empty, while there is a `next`.
    """
    needs(request, VIEW)
    only(request, *Filters.model_fields, "cursor", "limit", "sort")
    is_ascending = sort == OLDEST_FIRST
    place = {"after" if is_ascending else "before": cursor}
    chosen, position = filters.chosen(), PageCursor(**place, is_ascending=is_ascending)
    listing = find(chosen, position, limit=limit, without=() if chosen.text else PAYLOAD)
    onward, facts = listing.newer if is_ascending else listing.older, gather(listing.rows)
    return {
        "items": [TaskItem.of(task, decide(task, facts)) for task in listing.rows],
        "next": str(onward) if onward else None,
        "is_complete": listing.looked_down_to is None,
    }


@router.post("", response={201: Enqueued, 200: Enqueued}, summary="Enqueue a task")
def enqueue_task(request: HttpRequest, body: Enqueue) -> Status:
    """Declared tasks only. With a unique key that another task has, that one is the answer."""
    needs(request, VIEW, ENQUEUE)
    options = body.dict(exclude={"task_path", "queue"}) | {"queue_name": body.queue}
    try:
        ids = operations.enqueue(chosen_task(body.task_path).module_path, who(request), **options)
    except (UnknownTask, InternalTask) as error:
        raise Invalid("task_path", str(error)) from error
    except (InvalidTask, ValueError, TypeError) as error:
        raise Invalid("args", str(error)) from error
    status = HTTPStatus.OK if ids.duplicates else HTTPStatus.CREATED
    return Status(status, {"id": ids[0], "is_new": not ids.duplicates})


@router.get("/{int:task_id}", response=TaskDetail, summary="Show a task")
def get_task(request: HttpRequest, task_id: TaskId, response: HttpResponse) -> dict[str, Any]:
    """Its version is the ETag."""
    needs(request, VIEW)
    task, archived = find_task(task_id)
    if task is None:
        raise NotThere(f"#{task_id}: {MISSING.sentence}.")
    response["ETag"] = f'"{task.version}"'
    if archived:
        attempts = archived.attempts(MOST_ATTEMPTS)
        finding = judge(task, attempts)[1]
    else:
        attempts = list(Attempt.objects.filter(task=task).order_by("-id")[:MOST_ATTEMPTS])
        finding = decide(task, gather([task]))
    args, kwargs = redact_call(task.task_path, task.args, task.kwargs)
    own = {"archived": archived is not None, "args": args, "kwargs": kwargs, "command": finding.command or None}
    own["return_value"] = redact(task.return_value) if task.status == TaskStatus.COMPLETED else None
    return {**TaskItem.of(task, finding), **own, "attempts": [attempt_of(attempt) for attempt in attempts]}


ANSWERS = {200: Done, 202: Done}


@router.post("/{int:task_id}/requeue", response=ANSWERS, openapi_extra=SEEN, summary="Run a task again")
def requeue_task(request: HttpRequest, task_id: TaskId, body: Again) -> Status:
    """FAILED, CANCELLED or stale; what its attempts did before they ended may happen again."""
    return act(request, "requeue", task_id, Settings(reason=body.reason, force=body.force))


@router.post("/{int:task_id}/cancel", response=ANSWERS, openapi_extra=SEEN, summary="Cancel a task")
def cancel_task(request: HttpRequest, task_id: TaskId, body: NeededWhy) -> Status:
    """202: a live worker holds it and ends it within moments."""
    return act(request, "cancel", task_id, Settings(reason=body.reason))


@router.post("/{int:task_id}/edit", response=ANSWERS, openapi_extra=SEEN, summary="Move a task")
def edit_task(request: HttpRequest, task_id: TaskId, body: Move) -> Status:
    """Another queue, priority or time for a task that waits."""
    settings = Settings(reason=body.reason, queue_name=body.queue, priority=body.priority, run_after=body.run_after)
    return act(request, "edit", task_id, settings)


@router.post("/{int:task_id}/recover", response=ANSWERS, openapi_extra=SEEN, summary="Take a task back")
def recover_task(request: HttpRequest, task_id: TaskId, body: Why) -> Status:
    """From a worker that is dead or silent for too long."""
    return act(request, "recover", task_id, Settings(reason=body.reason))


@router.post("/{int:task_id}/quarantine", response=ANSWERS, openapi_extra=SEEN, summary="Put a task aside")
def quarantine_task(request: HttpRequest, task_id: TaskId, body: Why) -> Status:
    """Let it wait in the paused queue `quarantine`."""
    return act(request, "quarantine", task_id, Settings(reason=body.reason))


@router.post("/{int:task_id}/put_back", response=ANSWERS, openapi_extra=SEEN, summary="Put a task back")
def put_back_task(request: HttpRequest, task_id: TaskId, body: Why) -> Status:
    """Out of the quarantine, into the queue that it came from."""
    return act(request, "put_back", task_id, Settings(reason=body.reason))


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
    action = PAGE_ACTIONS[verb]
    needs(request, VIEW, action.right)
    edition = needed_edition_of(request)
    check(action, settings)
    result = action.perform({task_id: edition}, who(request), settings)
    if refusal := result.refused.get(task_id):
        raise refused(task_id, refusal, edition)
    task = existing(task_id)
    status = HTTPStatus.OK if result.done else HTTPStatus.ACCEPTED
    return Status(status, {"done": bool(result.done), "task": TaskItem.of(task, decide(task, gather([task])))})


def check(action: PageAction, settings: Settings) -> None:
    """Raise Invalid for settings with which it cannot be carried out."""
    if fault := action.fault(settings):
        raise Invalid("reason" if not action.lacks_change(settings) else "queue", fault)


def refused(task_id: int, refusal: Refusal, edition: int) -> Problem:
    """404, 412 with what has changed, or 409."""
    sentence = f"#{task_id} not changed: {refusal.sentence}."
    if refusal.code == MISSING.code:
        return NotThere(sentence)
    if refusal.code != CHANGED.code:
        return Conflict(sentence, Retry_After="1") if refusal.code == LOCKED.code else Conflict(sentence)
    since = Intervention.objects.filter(target=audit.task(task_id), version_after__gt=edition).order_by("id")
    problem = Changed(sentence, ETag=f'"{refusal.version}"')
    problem.more = {
        "now": vars(Seen.of(existing(task_id))),
        "since": [
            {"at": one.at.isoformat(), "actor": one.actor, "action": one.action, "reason": one.reason}
            for one in since[:MOST_INTERVENTIONS]
        ],
    }
    return problem
