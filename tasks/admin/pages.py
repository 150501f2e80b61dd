"""The life of one task as a list of events, oldest first, from its row and its history."""

import json
import time
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.utils.translation import gettext as _

from tasks.admin import rights
from tasks.admin.listing import Listing, Place, find, known_queues
from tasks.admin.page_actions import PAGE_ACTIONS, PageAction
from tasks.admin.seen import Seen
from tasks.diagnosis import Facts, Finding, decide, decision, gather
from tasks.framework import declaration
from tasks.models import Attempt, Intervention, RefusedWrite, Task, TaskStatus
from tasks.operations.bulk import INSTRUCTIONS
from tasks.operations.filters import ListFilter
from tasks.queue.presence import WorkerState
from tasks.support import audit, durations
from tasks.support.redaction import redact, redact_call

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


QUICK_SECONDS = 0.3  # a slower search does not refresh itself
HISTORY = 50  # entries of each kind on a task's page
BEHIND = 20  # tasks of the same key on a task's page


@dataclass(frozen=True)
class Row:
    """One line of the list; `action` is its own button."""

    task: Task
    finding: Finding
    seen: Seen
    action: PageAction | None

    @property
    def shown(self) -> Hashable:
        """All that the list shows of it, except its age and its next step."""
        return self.seen, self.task.task_path, self.finding

    @property
    def age_from(self) -> Any:
        """The start of its present state, as far as the row tells."""
        return self.task.finished_at or self.task.started_at or self.task.created_at


@dataclass(frozen=True)
class Button:
    """An action on one task: the right that this person lacks, and the equivalent command."""

    action: PageAction
    missing_right: str
    command: str


def rows_context(chosen: ListFilter, place: Place) -> dict[str, Any]:
    """The rows of one page of the list, and the URLs of its neighbours."""
    started = time.monotonic()
    listing = find(chosen, place)
    is_quick = time.monotonic() - started < QUICK_SECONDS
    facts = gather(listing.tasks)
    return {
        "is_live": is_quick and listing.looked_down_to is None,
        "rows": [row_of(task, decide(task, facts)) for task in listing.tasks],
        "listing": listing,
        "now": facts.now,
        "links": neighbours(chosen, listing),
        "chosen": chosen,
    }


def list_context(chosen: ListFilter, place: Place, user: Any) -> dict[str, Any]:
    """The list of tasks: its rows, its filter and its buttons.

    It refreshes itself (`is_live`) only if the search was quick.
    """
    rows = rows_context(chosen, place)
    buttons = buttons_of(PAGE_ACTIONS.values(), [], user)
    fitting = bulk_actions(chosen)
    return {
        **rows,
        "buttons": buttons,
        "bulk_buttons": [button for button in buttons if button.action in fitting],
        "query": chosen.as_query(),
        **filter_context(chosen),
    }


def filter_context(chosen: ListFilter) -> dict[str, Any]:
    """The filled-in form of the filter, and its choices."""
    return {
        "chosen": chosen,
        "older_than": durations.describe(chosen.older_than) if chosen.older_than is not None else "",
        "statuses": TaskStatus.choices,
        "queues": known_queues(),
        "paths": declaration.paths(),
    }


def bulk_actions(chosen: ListFilter) -> list[PageAction]:
    """Actions on everything that matches: none without a filter, else those that fit its statuses."""
    if chosen.is_empty:
        return []
    statuses = set(chosen.statuses or TaskStatus.values)
    return [action for action in PAGE_ACTIONS.values() if statuses & set(INSTRUCTIONS[action.name].statuses)]


def row_of(task: Task, finding: Finding) -> Row:
    return Row(task, finding, Seen.of(task), fitting_action(task, finding))


def fitting_action(task: Task, finding: Finding) -> PageAction | None:
    """The one safe next step, offered beside the row."""
    if PAGE_ACTIONS["recover"].suits(task, finding):
        return PAGE_ACTIONS["recover"]
    if task.status in (TaskStatus.FAILED, TaskStatus.CANCELLED):
        return PAGE_ACTIONS["requeue"]
    return None


def neighbours(chosen: ListFilter, listing: Listing) -> dict[str, str]:
    """Queries of the newest, the newer and the older page, including the filter; empty where there is none."""
    params = chosen.as_params()
    return {
        "newest": "?" + urlencode(params),
        "newer": "?" + urlencode([*params, ("after", listing.newer)]) if listing.newer else "",
        "older": "?" + urlencode([*params, ("before", listing.older)]) if listing.older else "",
    }


def button_of(action: PageAction, ids: list[int], user: Any) -> Button:
    return Button(action, rights.missing(user, action.right), action.command(ids) if ids else "")


def buttons_of(actions: Iterable[PageAction], ids: list[int], user: Any) -> list[Button]:
    """A button for each action; each right is checked once."""
    actions = list(actions)
    missing = {right: rights.missing(user, right) for right in {action.right for action in actions}}
    return [Button(action, missing[action.right], action.command(ids) if ids else "") for action in actions]


def detail_context(task: Task, user: Any) -> dict[str, Any]:
    """All that is known about one task."""
    facts = gather([task])
    finding = decide(task, facts)
    worker = facts.workers.get(task.claimed_by or "")
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
        "buttons": buttons_of(suitable, [task.pk], user),
        "kin": kin_of(task, user),
        "lock": facts.locks.get(task.pk),
        "behind": behind(task, facts),
        "worker": worker,
        "session": facts.sessions.get(task.claimed_by or ""),
        "statements": decision.statements_of(task),
        "arguments": pretty(args),
        "keyword_arguments": pretty(kwargs),
        "return_value": pretty(redact(task.return_value)),
        "attempts": attempts,
        "interventions": interventions,
        "refused_writes": refused,
        "events": events(task, attempts[::-1], interventions[::-1], refused[::-1], worker),
    }


@dataclass(frozen=True)
class Kin:
    """A button for every task of one function, and the list's filter that selects them."""

    button: Button
    query: str


def kin_of(task: Task, user: Any) -> list[Kin]:
    """Buttons for the task's whole function: run all failed ones again, or quarantine it."""
    path = ListFilter(task_paths=(task.task_path,))
    offered = {}
    if task.status == TaskStatus.FAILED:
        offered["requeue"] = path.with_statuses(TaskStatus.FAILED).as_query()
    if task.status in (TaskStatus.FAILED, TaskStatus.READY):
        offered["quarantine"] = path.as_query()
    buttons = buttons_of([PAGE_ACTIONS[name] for name in offered], [], user)
    return [Kin(button, offered[button.action.name]) for button in buttons]


def behind(task: Task, facts: Facts) -> list[Task]:
    """The first few tasks that wait for this one, which holds their ordering key."""
    key = facts.keys.get(task.ordering_key or "")
    if key is None or key.holder_id != task.pk:
        return []
    waiting = Task.objects.unfinished().filter(ordering_key=task.ordering_key).exclude(pk=task.pk)
    return list(waiting.order_by("ordering_key", "id")[:BEHIND])


def pretty(value: Any) -> str:
    """Indented JSON; characters beyond ASCII stay readable."""
    return json.dumps(value, indent=2, ensure_ascii=False)
