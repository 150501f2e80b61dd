"""The three things that a person does to tasks on a page: take back, run again, cancel."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from django.db import connection
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from tasks import actions
from tasks.audit import Who
from tasks.locking import rowlocks
from tasks.models import Task, TaskStatus
from tasks.verdicts import Finding, Verdict
from tasks.verdicts.words import command, told_lock

LIVE = (Verdict.RUNNING, Verdict.IN_BATCH, Verdict.WORKER_SILENT, Verdict.CANCELLING)


@dataclass
class Outcome:
    """What an action did: tasks `done`, tasks whose worker was `asked`, and why each of the `refused` stays as it is.

    `changed`: those among the refused that are not as the operator saw them.
    """

    done: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    changed: list[int] = field(default_factory=list)


class PageAction(ABC):
    """One button: its `data-action`, its words, the right and the reason that it asks for, and what it does."""

    name: str
    label: str | Promise
    question: str | Promise
    needs_reason = False
    is_destructive = False

    @property
    def right(self) -> str:
        return f"tasks.{self.name}_task"

    @abstractmethod
    def suits(self, task: Task, finding: Finding) -> bool:
        """Whether the button belongs on this task's page."""

    @abstractmethod
    def repeats(self, task: Task, finding: Finding) -> str:
        """Whether the effect of the task may happen again, or be cut short."""

    @abstractmethod
    def command(self, ids: list[int], *, reason: str = "", force: bool = False) -> str:
        """The command line that does the same."""

    @abstractmethod
    def perform(
        self, versions: Mapping[int, int], who: Who, *, reason: str, force: bool = False, dry_run: bool = False
    ) -> Outcome:
        """Do it to tasks that still have these versions, by id."""


class Recover(PageAction):
    name = "recover"
    label = gettext_lazy("Take back")
    question = gettext_lazy("Take these tasks back from their dead workers?")

    def suits(self, task: Task, finding: Finding) -> bool:
        return finding.verdict is Verdict.WORKER_DEAD

    def repeats(self, task: Task, finding: Finding) -> str:
        if finding.verdict is not Verdict.WORKER_DEAD:
            return _("Its worker is not dead; nothing is taken back.")
        if task.attempt >= task.max_attempts:
            return _("Its last attempt is spent: it becomes FAILED.")
        return _("What its worker did before it died may happen again.")

    def command(self, ids: list[int], *, reason: str = "", force: bool = False) -> str:
        return command("recover_tasks", *words(reason))

    def perform(
        self, versions: Mapping[int, int], who: Who, *, reason: str, force: bool = False, dry_run: bool = False
    ) -> Outcome:
        sweep = actions.recover(who, task_ids=list(versions), reason=reason, dry_run=dry_run)
        done = [row["id"] for row in sweep.rows]
        left = [task_id for task_id in versions if task_id not in done]
        waiting = _("its worker is not dead: not yet, or it is alive, or somebody took the task back already")
        return Outcome(done=done, refused={**dict.fromkeys(left, waiting), **busy(left)})


class Requeue(PageAction):
    name = "requeue"
    label = gettext_lazy("Run again")
    question = gettext_lazy("Run these tasks again?")

    def suits(self, task: Task, finding: Finding) -> bool:
        return task.status in (TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.PROCESSING)

    def repeats(self, task: Task, finding: Finding) -> str:
        if finding.verdict in LIVE:
            return _(
                "Its worker may still be on it: the effect may happen twice, and what the worker reports is refused."
            )
        if not task.attempt:
            return _("It never ran.")
        return _("What its attempts did before they ended may happen again.")

    def command(self, ids: list[int], *, reason: str = "", force: bool = False) -> str:
        return command("requeue_tasks", *map(str, ids), *(["--force"] if force else []), *words(reason))

    def perform(
        self, versions: Mapping[int, int], who: Who, *, reason: str, force: bool = False, dry_run: bool = False
    ) -> Outcome:
        result = actions.requeue(versions, who, reason=reason, versions=versions, force=force, dry_run=dry_run)
        return outcome_of(result)


class Cancel(PageAction):
    name = "cancel"
    label = gettext_lazy("Cancel")
    question = gettext_lazy("Cancel these tasks?")
    needs_reason = True
    is_destructive = True

    def suits(self, task: Task, finding: Finding) -> bool:
        return task.status not in (TaskStatus.COMPLETED, TaskStatus.CANCELLED) and task.cancel_requested_at is None

    def repeats(self, task: Task, finding: Finding) -> str:
        if finding.verdict in LIVE:
            return _("Its worker process is ended in the middle of it; what it did until then stays done.")
        if not task.attempt:
            return _("It never ran.")
        return _("What its attempts did before they ended stays done.")

    def command(self, ids: list[int], *, reason: str = "", force: bool = False) -> str:
        return command("cancel_tasks", *map(str, ids), *words(reason))

    def perform(
        self, versions: Mapping[int, int], who: Who, *, reason: str, force: bool = False, dry_run: bool = False
    ) -> Outcome:
        return outcome_of(actions.cancel(versions, who, reason=reason, versions=versions, dry_run=dry_run))


# In the order of the buttons: what destroys comes last.
PAGE_ACTIONS: dict[str, PageAction] = {action.name: action for action in (Recover(), Requeue(), Cancel())}


def outcome_of(result: actions.Result) -> Outcome:
    """A result of `tasks.actions`, as a page shows it."""
    refused = {task_id: str(refusal.sentence) for task_id, refusal in result.refused.items()}
    changed = [task_id for task_id, refusal in result.refused.items() if refusal.code is actions.Code.CHANGED]
    return Outcome(result.done, result.asked, refused, changed)


def busy(ids: list[int]) -> dict[int, str]:
    """For those among these tasks whose row a session holds: who that is."""
    found = rowlocks.lockers(Task, ids, connection)
    return {
        task_id: _("busy: %(holder)s; try again") % {"holder": told_lock(lock)}
        for task_id, lock in found.items()
        if lock.is_exclusive
    }


def words(reason: str) -> list[str]:
    return ["--reason", reason] if reason else []
