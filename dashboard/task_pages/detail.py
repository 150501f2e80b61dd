"""The page of one task, in the queue or archived: its verdict, its row, its history and its buttons."""

import json
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from dashboard import links
from dashboard.layout import page
from dashboard.task_pages import VIEW
from dashboard.task_pages.actions import PAGE_ACTIONS, Button, Seen, buttons_of, fitting_action
from dashboard.task_pages.enqueue import ENQUEUE, may_enqueue
from dashboard.task_pages.failure import failure_of
from dashboard.task_pages.timeline import events, spans
from tasks.admin import rights
from tasks.diagnosis import Facts, Finding, decide, decision, gather
from tasks.diagnosis.finding import command
from tasks.diagnosis.progress import Reported, checkpoint_of, latest_lines, progress_of
from tasks.framework.context import MOST_LINES
from tasks.framework.redacted_calls import redact_call
from tasks.models import ArchivedTask, Attempt, Intervention, RefusedWrite, Task, TaskStatus, Tick, find_task
from tasks.operations import unique
from tasks.operations.archived import again, judge
from tasks.operations.filters import TaskFilter
from tasks.support import audit, tracing
from tasks.support.database import fetch
from tasks.support.durations import spoken
from tasks.support.redaction import redact

HISTORY = 50  # entries of each kind
BEHIND = 20  # tasks of the same key
LONGEST_LINE = 80  # characters of JSON that need no unfolding

# Whoever wants a held row takes its tuple lock: the first one holds it while it waits, the others wait for it.
WAITERS = """
SELECT lock.pid, session.application_name, date_part('epoch', clock_timestamp() - session.query_start) AS seconds
FROM tasks_task AS task
JOIN pg_locks AS lock ON lock.locktype = 'tuple' AND lock.relation = task.tableoid
    AND lock.page = (task.ctid::text::point)[0]::int AND lock.tuple = (task.ctid::text::point)[1]::int
JOIN pg_stat_activity AS session USING (pid)
WHERE task.id = %(id)s AND session.wait_event_type = 'Lock'
ORDER BY session.query_start LIMIT 20
"""


@dataclass(frozen=True)
class Value:
    """Arguments or a return value: JSON on one line, and, where that is too long, on several."""

    label: str
    line: str
    text: str = ""

    @classmethod
    def of(cls, label: str, value: Any) -> "Value":
        line = json.dumps(value, ensure_ascii=False)
        if len(line) <= LONGEST_LINE:
            return cls(label, line)
        return cls(label, f"{line[:LONGEST_LINE]}…", json.dumps(value, indent=2, ensure_ascii=False))


def judged(task: Task, archived: ArchivedTask | None) -> tuple[Facts, Finding, list[Attempt]]:
    """The facts, the verdict and the latest attempts, from the archive if the task is there."""
    if archived:
        attempts = archived.attempts(HISTORY)
        return (*judge(task, attempts), attempts)
    facts = gather([task], always_locks=True)
    return facts, decide(task, facts), list(Attempt.objects.filter(task=task).order_by("-id")[:HISTORY])


def detail_context(task: Task, user: Any, archived: ArchivedTask | None = None) -> dict[str, Any]:
    facts, finding, attempts = judged(task, archived)
    interventions = list(Intervention.objects.filter(target=audit.task(task.pk)).order_by("-id")[:HISTORY])
    refused = list(RefusedWrite.objects.filter(task_id=task.pk).order_by("-id")[:HISTORY])
    worker = facts.workers.get(task.claimed_by or "")
    lock = facts.locks.get(task.pk)
    progress = progress_of(task)
    is_running = task.status == TaskStatus.PROCESSING
    return {
        "task": task,
        "trace_id": tracing.trace_id_of(task.traceparent),
        "trace_url": tracing.trace_url(task.traceparent),
        "limit_url": links.limit(task.concurrency_key) if task.concurrency_key else "",
        "name": task.task_path.rpartition(".")[2],
        "now": facts.now,
        "finding": finding,
        "is_said": finding.verdict.value == task.status.lower(),  # the verdict is the status
        "failure": failure_of(task, attempts),
        "spans": spans(task, attempts[::-1], interventions[::-1], facts.now),
        "reported": Reported.of(progress, facts.now) if progress and is_running else None,
        "values": [*values_of(task), *checkpoint_values(checkpoint_of(task, progress))],
        **(archived_buttons(task, user) if archived else buttons_context(task, finding, user)),
        "archived": archived,
        "lock": lock,
        "waiters": fetch(connection, WAITERS, {"id": task.pk}) if lock and lock.lockers else [],
        "behind": behind(task, facts),
        "key_holder": unique.holders([task.unique_key]).get(task.unique_key) if task.unique_key else None,
        **holder_context(task, facts),
        "tick": Tick.objects.filter(task_id=task.pk).first(),
        "finisher": links.worker(task.finished_by) if task.finished_by else "",
        "statements": decision.statements_of(task),
        "attempts": attempts,
        "log": archived.lines(MOST_LINES) if archived else latest_lines(task.pk),
        "interventions": interventions,
        "refused_writes": refused,
        "events": events(task, attempts[::-1], interventions[::-1], refused[::-1], worker, archived),
    }


def values_of(task: Task) -> list[Value]:
    """The call and what came of it, redacted; keyword arguments only if there are some."""
    args, kwargs = redact_call(task.task_path, task.args, task.kwargs)
    values = [Value.of(_("Arguments"), args)]
    if kwargs:
        values.append(Value.of(_("Keyword arguments"), kwargs))
    if task.status == TaskStatus.COMPLETED:
        values.append(Value.of(_("Return value"), redact(task.return_value)))
    return values


def checkpoint_values(state: Any) -> list[Value]:
    """The redacted checkpoint, if there is one."""
    return [] if state is None else [Value.of(_("Next attempt starts from a checkpoint"), state)]


def buttons_context(task: Task, finding: Finding, user: Any) -> dict[str, Any]:
    """The one safe next step, the other actions in the menu, and those on every task of the function."""
    suitable = [action for action in PAGE_ACTIONS.values() if action.suits(task, finding)]
    step = fitting_action(task, finding)
    buttons: list[Button] = buttons_of(suitable, user, task)
    return {
        "seen": Seen.of(task),
        "step": next((button for button in buttons if button.action is step), None),
        "buttons": [button for button in buttons if button.action is not step and not button.action.is_destructive],
        "destructive": [button for button in buttons if button.action.is_destructive],
        "kin": kin_of(task, user),
        "may_enqueue": may_enqueue(task.task_path),
        "commands": [*(button.command for button in buttons), command("show_task", str(task.pk))],
    }


def archived_buttons(task: Task, user: Any) -> dict[str, Any]:
    """The one action on an archived task: it makes a new one."""
    return {
        "missing_right": rights.missing(user, ENQUEUE),
        "may_enqueue": may_enqueue(task.task_path),
        "commands": [again(task.pk), command("show_task", str(task.pk))],
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


def detail_view(request: HttpRequest, task_id: int) -> HttpResponse:
    rights.require(request.user, VIEW)
    task, archived = find_task(task_id)
    if task is None:
        raise Http404(_("Task #%(id)d does not exist: it was pruned, or the id is wrong.") % {"id": task_id})
    context = detail_context(task, request.user, archived)
    if "HX-Request" in request.headers:
        return TemplateResponse(request, "task_pages/_detail.html", context)
    return page(request, "task_pages/detail.html", f"#{task.pk}", context)
