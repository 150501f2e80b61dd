"""The page of one task: its verdict, its row, its history and its buttons."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from dashboard.site import page
from dashboard.task_pages import VIEW
from dashboard.task_pages.actions import PAGE_ACTIONS, Seen, buttons_of
from tasks.admin import rights
from tasks.diagnosis import Facts, decide, decision, gather
from tasks.models import Attempt, Intervention, RefusedWrite, Task, TaskStatus
from tasks.operations.filters import TaskFilter
from tasks.queue.presence import WorkerState
from tasks.queue.release import UNKNOWN
from tasks.support import audit
from tasks.support.durations import spoken
from tasks.support.redaction import redact, redact_call

HISTORY = 50  # entries of each kind
BEHIND = 20  # tasks of the same key
CAUSE, EFFECT = 1, 2  # order of events of one moment
ONE_TRANSACTION_SECONDS = 1.0


@dataclass(frozen=True)
class Event:
    """An event of a task; `is_trouble` marks one that should not have happened."""

    at: datetime
    label: str
    detail: str = ""
    is_trouble: bool = False
    order: int = 0


def events(
    task: Task,
    attempts: Iterable[Attempt],
    interventions: Iterable[Intervention],
    refused: Iterable[RefusedWrite],
    worker: WorkerState | None = None,
) -> list[Event]:
    """All known events, by time; `worker` is the one that holds the task now."""
    known = [
        *of_task(task, worker),
        *(event for attempt in attempts for event in of_attempt(attempt)),
        *map(of_intervention, interventions),
        *map(of_refused_write, refused),
    ]
    return sorted(known, key=lambda event: (moment_of(event, task), event.order))


def moment_of(event: Event, task: Task) -> datetime:
    """The event's time for sorting.

    One statement ends a task, and the next one in the transaction writes the attempt or intervention. That is some
    milliseconds later by the clock, and yet the cause.
    """
    if task.finished_at is not None and event.order == CAUSE:
        late = (event.at - task.finished_at).total_seconds()
        return task.finished_at if 0 <= late < ONE_TRANSACTION_SECONDS else event.at
    return event.at


def of_task(task: Task, worker: WorkerState | None) -> Iterable[Event]:
    yield Event(task.created_at, _("Enqueued"), _("into the queue %(queue)s") % {"queue": task.queue_name})
    if task.status == TaskStatus.READY and task.run_after > task.created_at:
        yield Event(task.run_after, _("Due"))
    if task.started_at and task.status == TaskStatus.PROCESSING:
        yield Event(task.started_at, _("Claimed"), attempt_by(task.attempt, task.claimed_by))
        if worker and worker.current_task_id == task.pk and worker.current_since:
            yield Event(worker.current_since, _("Started"))
        if worker and worker.is_dead and (lost_at := worker.missing_since or worker.stopped_at):
            yield Event(lost_at, _("Worker lost"), _("its presence lock was gone"), is_trouble=True)
    if task.started_at and task.status == TaskStatus.COMPLETED:
        yield Event(task.started_at, _("Started"), attempt_by(task.attempt, task.finished_by or _("unknown")))
    if task.cancel_requested_at:
        yield Event(task.cancel_requested_at, _("Cancel requested"))
    if task.finished_at:
        label = str(TaskStatus(task.status).label)
        yield Event(task.finished_at, label, is_trouble=task.status == TaskStatus.FAILED, order=EFFECT)


def of_attempt(attempt: Attempt) -> Iterable[Event]:
    if attempt.outcome == Attempt.Outcome.RELEASED and attempt.exception_class == UNKNOWN:
        detail = _("worker %(worker)s does not know the function; no attempt was spent") % {"worker": attempt.worker_id}
        yield Event(attempt.finished_at, _("Given back"), detail, is_trouble=True)
        return
    if attempt.started_at:
        yield Event(attempt.started_at, _("Started"), attempt_by(attempt.number, attempt.worker_id))
    detail = _("attempt %(number)d") % {"number": attempt.number}
    if attempt.exception_class:
        detail += f": {attempt.exception_class}"
    label = str(Attempt.Outcome(attempt.outcome).label)
    is_trouble = attempt.outcome != Attempt.Outcome.RELEASED
    yield Event(attempt.finished_at, label, detail, is_trouble=is_trouble, order=CAUSE)


def attempt_by(number: int, worker: str | None) -> str:
    return _("attempt %(number)d, by worker %(worker)s") % {"number": number, "worker": worker}


def of_intervention(intervention: Intervention) -> Event:
    detail = _("by %(actor)s (%(source)s)") % {"actor": intervention.actor, "source": intervention.source}
    if intervention.version_before is not None:
        detail += f", v{intervention.version_before} → v{intervention.version_after}"
    if intervention.reason:
        detail += f": {intervention.reason}"
    return Event(intervention.at, intervention.action, detail, order=CAUSE)


def of_refused_write(refused: RefusedWrite) -> Event:
    values = {
        "worker": refused.worker_id,
        "intent": refused.intent,
        "expected": refused.expected_version,
        "found": f"v{refused.actual_version}" if refused.actual_version is not None else _("no row"),
    }
    detail = _("worker %(worker)s meant to %(intent)s v%(expected)d, and found %(found)s") % values
    return Event(refused.at, _("Late write refused"), detail, is_trouble=True)


def detail_context(task: Task, user: Any) -> dict[str, Any]:
    facts = gather([task])
    finding = decide(task, facts)
    attempts = list(Attempt.objects.filter(task=task).order_by("-id")[:HISTORY])
    interventions = list(Intervention.objects.filter(target=audit.task(task.pk)).order_by("-id")[:HISTORY])
    refused = list(RefusedWrite.objects.filter(task_id=task.pk).order_by("-id")[:HISTORY])
    args, kwargs = redact_call(task.task_path, task.args, task.kwargs)
    suitable = [action for action in PAGE_ACTIONS.values() if action.suits(task, finding)]
    return {
        "task": task,
        "now": facts.now,
        "finding": finding,
        "seen": Seen.of(task),
        "buttons": buttons_of(suitable, user, task),
        "kin": kin_of(task, user),
        "lock": facts.locks.get(task.pk),
        "behind": behind(task, facts),
        **holder_context(task, facts),
        "statements": decision.statements_of(task),
        "arguments": pretty(args),
        "keyword_arguments": pretty(kwargs),
        "return_value": pretty(redact(task.return_value)),
        "attempts": attempts,
        "interventions": interventions,
        "refused_writes": refused,
        "events": events(
            task, attempts[::-1], interventions[::-1], refused[::-1], facts.workers.get(task.claimed_by or "")
        ),
    }


def kin_of(task: Task, user: Any) -> list[dict[str, Any]]:
    """Buttons for the task's whole function: run all failed ones again, or quarantine it."""
    path = TaskFilter(task_paths=(task.task_path,))
    offered = {}
    if task.status == TaskStatus.FAILED:
        offered["requeue"] = _("Run all that failed again…"), path.with_statuses(TaskStatus.FAILED)
    if task.status in (TaskStatus.FAILED, TaskStatus.READY):
        offered["quarantine"] = _("Quarantine the function…"), path
    buttons = zip(buttons_of([PAGE_ACTIONS[name] for name in offered], user), offered.values(), strict=True)
    return [{"button": button, "label": label, "query": chosen.as_query()} for button, (label, chosen) in buttons]


def holder_context(task: Task, facts: Facts) -> dict[str, Any]:
    """The worker that holds the task, and its database session, in words; empty if nobody holds it."""
    worker, session = facts.workers.get(task.claimed_by or ""), facts.sessions.get(task.claimed_by or "")
    name = heard = ""
    if worker:
        name = f"{worker.id} ({worker.hostname}, pid {worker.pid})" if worker.registered else worker.id
    if worker and worker.heartbeat_age_seconds is not None:
        ago = _("%(age)s ago") % {"age": spoken(worker.heartbeat_age_seconds)}
        heard = ago if worker.held else ", ".join((ago, _("its session is gone")))
    return {"worker_name": name, "last_heard": heard, "session": session}


def behind(task: Task, facts: Facts) -> list[Task]:
    """The first few tasks that wait for this one, which holds their ordering key."""
    key = facts.keys.get(task.ordering_key or "")
    if key is None or key.holder_id != task.pk:
        return []
    waiting = Task.objects.unfinished().filter(ordering_key=task.ordering_key).exclude(pk=task.pk)
    return list(waiting.order_by("ordering_key", "id")[:BEHIND])


def pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def detail_view(request: HttpRequest, task_id: int) -> HttpResponse:
    rights.require(request.user, VIEW)
    task = Task.objects.filter(pk=task_id).first()
    if task is None:
        raise Http404(_("Task #%(id)d does not exist: it was pruned, or the id is wrong.") % {"id": task_id})
    context = detail_context(task, request.user)
    if "HX-Request" in request.headers:
        return TemplateResponse(request, "task_pages/_detail.html", context)
    return page(request, "task_pages/detail.html", f"#{task.pk}", context)
