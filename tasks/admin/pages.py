"""Context for the pages of tasks: plain values for the templates, read in a fixed number of statements."""

import json
import time
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from tasks import audit, durations, registry
from tasks.admin import rights, timeline
from tasks.admin.listing import ListFilter, Listing, Place, find, known_queues
from tasks.admin.page_actions import PAGE_ACTIONS, PageAction
from tasks.admin.seen import Seen
from tasks.bulk.instruction import INSTRUCTIONS
from tasks.models import Attempt, Intervention, RefusedWrite, Task, TaskStatus
from tasks.redaction import redact, redact_call
from tasks.verdicts import Facts, Finding, decide, gather, statements

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
        "paths": registry.paths(),
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
        "statements": statements.behind(task),
        "arguments": pretty(args),
        "keyword_arguments": pretty(kwargs),
        "return_value": pretty(redact(task.return_value)),
        "attempts": attempts,
        "interventions": interventions,
        "refused_writes": refused,
        "events": timeline.events(task, attempts[::-1], interventions[::-1], refused[::-1], worker),
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
