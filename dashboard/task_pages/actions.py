"""The actions that people take on tasks: their buttons, the versions that people saw, and bulk runs."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from django.db import connection
from django.db.models import QuerySet
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from dashboard.task_pages import CHANGED_FORM
from tasks import operations
from tasks.admin import rights
from tasks.diagnosis import Finding, Verdict
from tasks.diagnosis.finding import locked_by
from tasks.locking import rowlocks
from tasks.models import BulkRun, Task, TaskStatus
from tasks.operations import Result
from tasks.operations.filters import InvalidFilter, TaskFilter, parse_id
from tasks.operations.quarantine import QUEUE as QUARANTINE
from tasks.operations.verb import NO_SETTINGS, Settings, Verb
from tasks.support.audit import Who

SHOWN_RUNS = 50
LABELS = {
    "version": gettext_lazy("version"),
    "status": gettext_lazy("status"),
    "attempt": gettext_lazy("attempts spent"),
    "max_attempts": gettext_lazy("attempts allowed"),
    "queue_name": gettext_lazy("queue"),
    "priority": gettext_lazy("priority"),
    "run_after": gettext_lazy("due"),
    "claimed_by": gettext_lazy("worker"),
}
LIVE = (Verdict.RUNNING, Verdict.IN_BATCH, Verdict.WORKER_SILENT, Verdict.CANCELLING)


class Difference(NamedTuple):
    label: str
    then: Any
    now: Any


@dataclass(frozen=True)
class Seen:
    """The row as the page showed it. Only `id` and `version` decide; the other columns show what changed."""

    id: int
    version: int
    status: str
    attempt: int
    max_attempts: int
    queue_name: str
    priority: int
    run_after: str
    claimed_by: str | None

    @classmethod
    def of(cls, task: Task) -> Self:
        columns = {name: getattr(task, name) for name in LABELS}
        columns["run_after"] = task.run_after.isoformat()
        return cls(id=task.pk, **columns)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the output of `str`. Raises InvalidFilter for anything else."""
        try:
            seen = cls(**json.loads(text))
            parse_id(str(seen.id))
            if not isinstance(seen.version, int):
                raise TypeError(seen.version)
        except (ValueError, TypeError) as error:
            raise InvalidFilter(str(CHANGED_FORM)) from error
        return seen

    def __str__(self) -> str:
        return json.dumps(vars(self))

    def differences(self, task: Task) -> list[Difference]:
        """The columns that differ between then and `task`."""
        now, then = vars(type(self).of(task)), vars(self)
        return [
            Difference(str(label), then[name], now[name]) for name, label in LABELS.items() if then[name] != now[name]
        ]


@dataclass(frozen=True, kw_only=True)
class TaskRow:
    """One task in any table of tasks; `seen` is the value of the form's field."""

    id: str
    task_path: str
    status: str
    version: str
    attempts: str
    finding: Finding
    seen: str

    @classmethod
    def of(cls, task: Task, finding: Finding, **own: Any) -> Self:
        """Make the row of a task; `own`: the fields that only this table has."""
        return cls(
            id=str(task.pk),
            task_path=task.task_path,
            status=task.status,
            version=f"v{task.version}",
            attempts=f"{task.attempt}/{task.max_attempts}",
            finding=finding,
            seen=str(Seen.of(task)),
            **own,
        )


class PageAction:
    """One button: the verb that it performs, and its texts, fields and need for a reason.

    `name` is the verb's, and also the button's `data-action`.
    """

    verb: type[Verb]
    question: str | Promise
    happens: str | Promise
    fields: tuple[str, ...] = ()
    needs_reason = False
    is_destructive = False
    makes_ready = False  # in the queue where the task is

    def __init__(self) -> None:
        self.name, self.label, self.right = self.verb.name, self.verb.label, self.verb.right

    def suits(self, task: Task, finding: Finding) -> bool:
        """True if the button belongs on this task's page."""
        return task.status in self.verb.statuses

    def repeats(self, task: Task, finding: Finding) -> str:
        """A sentence: may the task's effect happen again, or be cut short?"""
        return _("What its attempts did before they ended may happen again.") if task.attempt else _("It never ran.")

    def fault(self, settings: Settings) -> str:
        """The reason why it cannot be carried out with these settings, or an empty text."""
        if settings.force and not settings.reason:
            return _("Taking a task from a live worker needs a reason, which the audit keeps.")
        if self.needs_reason and not settings.reason:
            return _("This needs a reason, which the audit keeps.")
        return ""

    def lacks_change(self, settings: Settings) -> bool:
        """True if these settings leave nothing to do, so that the command would be refused."""
        return False

    def command(self, tasks: Iterable[Task], settings: Settings = NO_SETTINGS) -> str:
        """The command that does the same; empty if there is none yet."""
        ids = tuple(sorted(task.pk for task in tasks))
        return "" if self.lacks_change(settings) else self.verb.command(TaskFilter(ids=ids), settings)

    def perform(self, versions: Mapping[int, int], who: Who, settings: Settings, *, dry_run: bool = False) -> Result:
        """Perform it on the tasks that still have these versions, by id."""
        return self.verb.act(versions, who, settings, versions=versions, dry_run=dry_run)


class Recover(PageAction):
    verb = operations.Recover
    question = gettext_lazy("Take these tasks back from their dead workers?")
    happens = gettext_lazy(
        "Each becomes READY at once, for a live worker of its queue to run; the attempt that died stays spent."
    )
    makes_ready = True

    def suits(self, task: Task, finding: Finding) -> bool:
        return finding.verdict is Verdict.WORKER_DEAD

    def repeats(self, task: Task, finding: Finding) -> str:
        if finding.verdict is not Verdict.WORKER_DEAD:
            return _("Its worker is not dead; nothing is taken back.")
        if task.attempt >= task.max_attempts:
            return _("Its last attempt is spent: it becomes FAILED.")
        return _("What its worker did before it died may happen again.")

    def perform(self, versions: Mapping[int, int], who: Who, settings: Settings, *, dry_run: bool = False) -> Result:
        result = super().perform(versions, who, settings, dry_run=dry_run)
        for task_id, lock in rowlocks.lockers(Task, list(result.refused), connection).items():
            if lock.is_exclusive:
                result.refused[task_id] = replace(result.refused[task_id], sentence=locked_by(lock))
        return result


class Requeue(PageAction):
    verb = operations.Requeue
    question = gettext_lazy("Run these tasks again?")
    happens = gettext_lazy(
        "Each becomes READY with a fresh allowance of attempts, for a live worker of its queue to run."
    )
    fields = ("spread_minutes",)
    makes_ready = True

    def repeats(self, task: Task, finding: Finding) -> str:
        if finding.verdict in LIVE:
            return _(
                "Its worker may still be on it: the effect may happen twice, and what the worker reports is refused."
            )
        return super().repeats(task, finding)


class Edit(PageAction):
    verb = operations.Edit
    question = gettext_lazy("Move these tasks to another queue, priority or time?")
    happens = gettext_lazy("Each stays READY, and runs when it is its turn in the new place.")
    fields = ("queue_name", "priority", "run_after")

    def repeats(self, task: Task, finding: Finding) -> str:
        if task.status != TaskStatus.READY:
            return _("Only a task that waits to run can be moved.")
        return _("It goes on waiting; empty fields change nothing.")

    def fault(self, settings: Settings) -> str:
        if self.lacks_change(settings):
            return _("What is to change? Give a queue, a priority or a time.")
        return super().fault(settings)

    def lacks_change(self, settings: Settings) -> bool:
        return all(getattr(settings, name) is None for name in self.fields)

    def command(self, tasks: Iterable[Task], settings: Settings = NO_SETTINGS) -> str:
        """Until a change is given it sets the priority that all the tasks have; empty if they differ."""
        tasks = list(tasks)
        priorities = {task.priority for task in tasks}
        if self.lacks_change(settings) and len(priorities) == 1:
            settings = replace(settings, priority=priorities.pop())
        return super().command(tasks, settings)


class Quarantine(PageAction):
    verb = operations.Quarantine
    question = gettext_lazy("Let these tasks wait in the paused queue “quarantine”?")
    happens = gettext_lazy("They do not run until a person puts them back.")

    def suits(self, task: Task, finding: Finding) -> bool:
        is_put_aside = task.status == TaskStatus.READY and task.queue_name == QUARANTINE
        return super().suits(task, finding) and not is_put_aside

    def repeats(self, task: Task, finding: Finding) -> str:
        if task.status not in self.verb.statuses:
            return _("Only what is READY or FAILED goes into quarantine.")
        if task.ordering_key is not None:
            return _("Later tasks of its key wait behind it until it is put back or cancelled.")
        return _("Nothing runs until it is put back; then it runs with a fresh allowance of attempts if it had failed.")


class PutBack(PageAction):
    verb = operations.PutBack
    question = gettext_lazy("Put these tasks back into the queues that they came from?")
    happens = gettext_lazy("Each is READY in the queue that it came from, and runs when it is its turn.")

    def suits(self, task: Task, finding: Finding) -> bool:
        return super().suits(task, finding) and task.queue_name == QUARANTINE


class Cancel(PageAction):
    verb = operations.Cancel
    question = gettext_lazy("Cancel these tasks?")
    happens = gettext_lazy("Each becomes CANCELLED and stays so, unless somebody runs it again.")
    needs_reason = True
    is_destructive = True

    def suits(self, task: Task, finding: Finding) -> bool:
        return super().suits(task, finding) and task.cancel_requested_at is None

    def repeats(self, task: Task, finding: Finding) -> str:
        if finding.verdict in LIVE:
            return _("Its worker process is ended in the middle of it; what it did until then stays done.")
        return _("What its attempts did before they ended stays done.") if task.attempt else _("It never ran.")


PAGE_ACTIONS: dict[str, PageAction] = {
    action.name: action for action in (Recover(), Requeue(), Edit(), PutBack(), Quarantine(), Cancel())
}


def fitting_action(task: Task, finding: Finding) -> PageAction | None:
    """The one safe next step, offered beside the row."""
    if PAGE_ACTIONS["recover"].suits(task, finding):
        return PAGE_ACTIONS["recover"]
    if task.status in (TaskStatus.FAILED, TaskStatus.CANCELLED):
        return PAGE_ACTIONS["requeue"]
    return None


@dataclass(frozen=True)
class Button:
    """An action on tasks: the right that this person lacks, and the equivalent command for one task."""

    action: PageAction
    missing_right: str
    command: str


def buttons_of(actions: Collection[PageAction], user: Any, task: Task | None = None) -> list[Button]:
    """A button for each action; each right is checked once."""
    missing = {right: rights.missing(user, right) for right in {action.right for action in actions}}
    return [Button(action, missing[action.right], action.command([task]) if task else "") for action in actions]


class RunRow(NamedTuple):
    """One run in a list. `is_over`: it has finished, or its task has ended or is gone."""

    run: BulkRun
    action: PageAction
    state: str
    is_over: bool


def run_rows(runs: "QuerySet[BulkRun]") -> list[RunRow]:
    """The latest of these runs, read in two statements."""
    found = list(runs.order_by("-pk")[:SHOWN_RUNS])
    tasks = Task.objects.in_bulk([run.task_id for run in found if run.task_id])
    return [run_row(run, tasks.get(run.task_id or 0)) for run in found]


def run_row(run: BulkRun, task: Task | None) -> RunRow:
    is_over = run.finished_at is not None or task is None or task.finished_at is not None
    if run.finished_at is not None:
        state = _("Stopped") if run.stop_requested_at else _("Done")
    elif task is None or task.finished_at is not None:
        state = _("Given up: its task has ended")
    else:
        state = _("Under way") if task.status == TaskStatus.PROCESSING else _("Waits for a worker")
    return RunRow(run, PAGE_ACTIONS[run.action], state, is_over)


def unfinished_runs() -> list[RunRow]:
    return [row for row in run_rows(BulkRun.objects.filter(finished_at__isnull=True)) if not row.is_over]
