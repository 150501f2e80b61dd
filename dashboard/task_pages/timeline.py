"""The course of one task: its events by time, and for each attempt the time that it waited and ran."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from django.utils.translation import gettext as _

from dashboard.numbers import decimal
from tasks.models import ArchivedTask, Attempt, Intervention, RefusedWrite, Task, TaskStatus
from tasks.queue.presence import WorkerState
from tasks.queue.release import UNKNOWN
from tasks.support.durations import spoken

CAUSE, EFFECT = 1, 2  # order of events of one moment
ONE_TRANSACTION_SECONDS = 1.0
EXACT_SECONDS = 120.0  # shorter times are shown to the millisecond
NARROWEST = 1.0  # percent of a bar


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
    archived: ArchivedTask | None = None,
) -> list[Event]:
    """All known events, by time; `worker` is the one that holds the task now, `archived` its row in the archive."""
    known = [
        *of_task(task, worker),
        *(event for attempt in attempts for event in of_attempt(attempt)),
        *map(of_intervention, interventions),
        *map(of_refused_write, refused),
        *([Event(archived.archived_at, _("Archived"))] if archived else ()),
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


@dataclass(frozen=True)
class Span:
    """One attempt: how long it waited before it began and how long it ran, in words and as parts of a bar in percent.

    `number` is 0 for a wait that has not led to an attempt; `is_open`: it goes on. `ran` is empty if it never began.
    """

    number: int
    waited: str
    ran: str
    waited_percent: str
    ran_percent: str
    is_open: bool
    is_trouble: bool


@dataclass(frozen=True)
class Stretch:
    """The times of one attempt; `began` or `ended` is None if it has not."""

    number: int
    began: datetime | None
    ended: datetime | None
    is_trouble: bool


def spans(task: Task, attempts: list[Attempt], interventions: list[Intervention], now: datetime) -> list[Span]:
    """A span for each recorded attempt and the current one, by time; both lists begin with the oldest."""
    found, since = [], task.created_at
    known = list(stretches(task, attempts, now))
    begun_again = [entry.at for entry in interventions if entry.action == "requeue"]
    for stretch in known:
        starts = stretch.began or stretch.ended or now
        # The row keeps only the latest time at which it was due.
        possible = [*begun_again, task.run_after] if stretch is known[-1] else begun_again
        since = max([since, *(at for at in possible if at <= starts)])
        found.append(span(stretch, since, now))
        since = stretch.ended or now
    return found


def stretches(task: Task, attempts: list[Attempt], now: datetime) -> Iterator[Stretch]:
    """The attempts that left a row, then the one of the task's own row if it runs or is due."""
    for attempt in attempts:
        if attempt.started_at:
            is_trouble = attempt.outcome != Attempt.Outcome.RELEASED
            yield Stretch(attempt.number, attempt.started_at, attempt.finished_at, is_trouble)
    if task.status in (TaskStatus.PROCESSING, TaskStatus.COMPLETED):
        yield Stretch(task.attempt, task.started_at, task.finished_at, False)
    elif task.status == TaskStatus.READY and task.run_after <= now:
        yield Stretch(0, None, None, False)


def span(stretch: Stretch, since: datetime, now: datetime) -> Span:
    began, ended = stretch.began or stretch.ended or now, stretch.ended or now
    waited, ran = max(0.0, (began - since).total_seconds()), max(0.0, (ended - began).total_seconds())
    share = 100 * waited / (waited + ran) if waited + ran else 50.0
    if stretch.began:
        share = min(max(share, NARROWEST), 100 - NARROWEST)
    return Span(
        number=stretch.number,
        waited=exact(waited),
        ran=exact(ran) if stretch.began else "",
        waited_percent=f"{share:.1f}%",
        ran_percent=f"{100 - share:.1f}%" if stretch.began else "0%",
        is_open=stretch.ended is None,
        is_trouble=stretch.is_trouble,
    )


def exact(seconds: float) -> str:
    """The duration in the unit that fits, to the millisecond below two minutes."""
    return _("%(number)s s") % {"number": decimal(seconds, 3)} if 1 <= seconds < EXACT_SECONDS else spoken(seconds)
