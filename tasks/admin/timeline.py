"""The life of one task as a list of events, oldest first, from its row and its history."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.utils.translation import gettext as _

from tasks.models import Attempt, Intervention, RefusedWrite, Task, TaskStatus
from tasks.presence import WorkerState

START, CAUSE, END = 0, 1, 2
ONE_TRANSACTION_SECONDS = 1.0


@dataclass(frozen=True)
class Event:
    """An event of a task; `is_trouble` marks one that should not have happened."""

    at: datetime
    label: str
    detail: str = ""
    is_trouble: bool = False
    place: int = 0  # orders events of one moment: causes before effects


def events(
    task: Task,
    attempts: Iterable[Attempt],
    interventions: Iterable[Intervention],
    refused: Iterable[RefusedWrite],
    worker: WorkerState | None = None,
) -> list[Event]:
    """All known events, by time; `worker` is the one that holds the task now."""
    known = [
        *life(task, worker),
        *(event for attempt in attempts for event in of_attempt(attempt)),
        *map(of_intervention, interventions),
        *map(of_refused_write, refused),
    ]
    return sorted(known, key=lambda event: (moment_of(event, task), event.place))


def moment_of(event: Event, task: Task) -> datetime:
    """The event's time for sorting.

    One statement ends a task, and the next one in the transaction writes the attempt or intervention. That is some
    milliseconds later by the clock, and yet the cause.
    """
    if task.finished_at is not None and event.place == CAUSE:
        late = (event.at - task.finished_at).total_seconds()
        return task.finished_at if 0 <= late < ONE_TRANSACTION_SECONDS else event.at
    return event.at


def life(task: Task, worker: WorkerState | None) -> Iterable[Event]:
    """Events from the row itself."""
    yield Event(task.created_at, _("Enqueued"), _("into the queue %(queue)s") % {"queue": task.queue_name})
    if task.status == TaskStatus.READY and task.run_after > task.created_at:
        yield Event(task.run_after, _("Due"))
    if task.started_at and task.status == TaskStatus.PROCESSING:
        told = {"number": task.attempt, "worker": task.claimed_by}
        yield Event(task.started_at, _("Claimed"), _("attempt %(number)d, by worker %(worker)s") % told)
        if worker and worker.current_task_id == task.pk and worker.current_since:
            yield Event(worker.current_since, _("Started"))
        if worker and worker.is_dead and (lost_at := worker.missing_since or worker.stopped_at):
            yield Event(lost_at, _("Worker lost"), _("its presence lock was gone"), is_trouble=True)
    if task.started_at and task.status == TaskStatus.COMPLETED:
        told = {"number": task.attempt, "worker": task.finished_by or _("unknown")}
        yield Event(task.started_at, _("Started"), _("attempt %(number)d, by worker %(worker)s") % told)
    if task.cancel_requested_at:
        yield Event(task.cancel_requested_at, _("Cancel requested"))
    if task.finished_at:
        label = TaskStatus(task.status).label
        yield Event(task.finished_at, str(label), is_trouble=task.status == TaskStatus.FAILED, place=END)


def of_attempt(attempt: Attempt) -> Iterable[Event]:
    """Its start, if known, and its end."""
    told = {"number": attempt.number, "worker": attempt.worker_id}
    if attempt.started_at:
        yield Event(attempt.started_at, _("Started"), _("attempt %(number)d, by worker %(worker)s") % told)
    label = str(Attempt.Outcome(attempt.outcome).label)
    detail = _("attempt %(number)d") % told + (f": {attempt.exception_class}" if attempt.exception_class else "")
    is_trouble = attempt.outcome != Attempt.Outcome.RELEASED
    yield Event(attempt.finished_at, label, detail, is_trouble=is_trouble, place=CAUSE)


def of_intervention(intervention: Intervention) -> Event:
    told = {"actor": intervention.actor, "action": intervention.action, "source": intervention.source}
    detail = _("by %(actor)s (%(source)s)") % told
    if intervention.version_before is not None:
        detail += f", v{intervention.version_before} → v{intervention.version_after}"
    if intervention.reason:
        detail += f": {intervention.reason}"
    return Event(intervention.at, intervention.action, detail, place=CAUSE)


def of_refused_write(refused: RefusedWrite) -> Event:
    found = f"v{refused.actual_version}" if refused.actual_version is not None else _("no row")
    told = {"worker": refused.worker_id, "intent": refused.intent, "expected": refused.expected_version, "found": found}
    detail = _("worker %(worker)s meant to %(intent)s v%(expected)d, and found %(found)s") % told
    return Event(refused.at, _("Late write refused"), detail, is_trouble=True)
