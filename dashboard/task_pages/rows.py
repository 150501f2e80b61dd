"""The rows of the list of tasks: each on one line, with its call, its error or its times, and its buttons."""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from dashboard.task_pages.actions import PAGE_ACTIONS, PageAction, TaskRow, fitting_action
from dashboard.task_pages.failure import message_of
from dashboard.task_pages.timeline import exact
from dashboard.templatetags.rowlock import age
from tasks.diagnosis import Facts, Verdict, decide
from tasks.diagnosis.progress import Reported
from tasks.framework.redacted_calls import redact_call
from tasks.models import Attempt, Task, TaskStatus
from tasks.support.reading import one_line

LONGEST_CALL = 60  # characters of a call in a row
MOST_ARGUMENTS = 4


@dataclass(frozen=True, kw_only=True)
class ListRow(TaskRow):
    """One line of the list.

    `call`: the arguments as shown; `error`: the last line of a failed task's exception; `times`: how long
    a completed one ran and waited; `percent`, `message`: what a running one has reported;
    `action`: the row's own button; `actions`: those in its menu.
    """

    name: str
    call: str
    error: str
    times: str
    percent: str
    message: str
    queue_name: str
    priority: str
    since: SafeString | str
    action: PageAction | None
    actions: tuple[PageAction, ...]
    command: str


def list_row(task: Task, facts: Facts, error: str, reported: Reported | None = None) -> ListRow:
    finding = decide(task, facts)
    action = fitting_action(task, finding)
    shown = reported if finding.verdict is Verdict.RUNNING else None  # a dead worker is the greater news
    return ListRow.of(
        task,
        finding,
        name=task.task_path.rpartition(".")[2],
        call=call_of(task),
        error=error,
        times=times_of(task),
        percent=str(shown.percent) if shown else "",
        message=one_line(shown.message) if shown else "",
        queue_name=task.queue_name,
        priority=str(task.priority or ""),
        since=age(task.finished_at or task.started_at or task.created_at, facts.now),
        action=action,
        actions=tuple(one for one in PAGE_ACTIONS.values() if one is not action and one.suits(task, finding)),
        command=f"python manage.py show_task {task.pk}",
    )


def times_of(task: Task) -> str:
    """The times that a completed task ran and waited; empty for any other."""
    if task.status != TaskStatus.COMPLETED or not task.started_at or not task.finished_at:
        return ""
    ran, waited = task.finished_at - task.started_at, task.started_at - task.run_after
    values = {"ran": exact(ran.total_seconds()), "waited": exact(max(0.0, waited.total_seconds()))}
    return _("ran %(ran)s, waited %(waited)s") % values


def call_of(task: Task) -> str:
    """The arguments on one line, redacted and cut."""
    args, kwargs = redact_call(task.task_path, task.args, task.kwargs)
    texts = [json.dumps(value, ensure_ascii=False)[:LONGEST_CALL] for value in args[:MOST_ARGUMENTS]]
    named = list(kwargs.items())[: MOST_ARGUMENTS - len(texts)]
    texts += [f"{name}={json.dumps(value, ensure_ascii=False)}"[:LONGEST_CALL] for name, value in named]
    text = f"[{', '.join(texts)}]" if texts else ""
    return one_line(text if len(text) <= LONGEST_CALL else f"{text[: LONGEST_CALL - 1]}…")


def latest_errors(tasks: Iterable[Task]) -> dict[int, str]:
    """The last line of the exception for each FAILED task that has one, without the module of its class."""
    failed = [task.pk for task in tasks if task.status == TaskStatus.FAILED]
    latest = Attempt.objects.filter(task_id__in=failed).order_by("task_id", "-id").distinct("task_id") if failed else ()
    return {attempt.task_id: message_of(attempt) for attempt in latest}
