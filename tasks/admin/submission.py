"""A submitted form: the action, the tasks as the operator saw them, the reason; compared with the current rows."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from django.http import QueryDict
from django.utils.translation import gettext as _

from tasks.admin.page_actions import LIVE, PageAction
from tasks.admin.seen import Difference, Seen
from tasks.admin.settings_form import SettingsForm, form_of, settings_of
from tasks.diagnosis import Facts, Finding, decide, gather
from tasks.diagnosis.decision import is_unserved
from tasks.diagnosis.sentences import no_worker
from tasks.models import Intervention, Task, TaskStatus
from tasks.operations.bulk import Settings
from tasks.operations.filters import InvalidFilter
from tasks.queue.presence import WorkerState
from tasks.support import audit, reading
from tasks.support.durations import spoken

MOST_TASKS = 200


@dataclass(frozen=True)
class Submission:
    """A person's request. `is_confirmed`: the person saw the preview and pressed its button."""

    action: PageAction
    seen: dict[int, Seen]
    settings: Settings
    form: SettingsForm
    is_confirmed: bool = False

    @classmethod
    def from_post(cls, action: PageAction, post: QueryDict) -> Self:
        """Read the form of a list, a row, a detail page or a preview; `only` (one row's button) overrides `seen`.

        Raises InvalidFilter for a form that was tampered with.
        """
        seen = [Seen.parse(text) for text in post.getlist("only") or post.getlist("seen")]
        if len(seen) > MOST_TASKS:
            raise InvalidFilter(f"That is more than {MOST_TASKS} tasks: choose fewer, or use the command.")
        form = form_of(action.fields, post)
        form.is_valid()
        settings = settings_of(form, reason_of(post), force="force" in post)
        seen_by_id = {row.id: row for row in seen}
        return cls(action, seen_by_id, settings, form, is_confirmed="confirmed" in post)

    @property
    def versions(self) -> dict[int, int]:
        return {task_id: seen.version for task_id, seen in self.seen.items()}

    def fault(self) -> str:
        """The reason why it cannot be carried out as it stands, or an empty text."""
        if self.form.errors:
            return _("Correct what is marked below.")
        return self.action.fault(self.settings)


def reason_of(post: QueryDict) -> str:
    """The person's reason. Raises Unreadable, which the site answers with 400."""
    return reading.reason(post.get("reason", ""))


@dataclass(frozen=True)
class Change:
    """A task that changed since the operator saw it, and people's interventions since. `task` is None if it is gone."""

    id: int
    task: Task | None
    differences: list[Difference]
    interventions: list[Intervention]


@dataclass(frozen=True)
class Row:
    """One task of a preview."""

    task: Task
    seen: Seen
    finding: Finding
    sign_of_life: str
    repeats: str


@dataclass(frozen=True)
class Preview:
    """The expected effect of a submission on the current rows."""

    rows: list[Row]
    changes: list[Change]
    unserved: list[Finding] = field(default_factory=list)  # queues without a live worker

    @property
    def has_live(self) -> bool:
        """True if a worker that is not dead holds any of them."""
        return any(row.finding.verdict in LIVE for row in self.rows)


def preview(submission: Submission) -> Preview:
    """Compare the rows as seen with the current ones."""
    tasks = Task.objects.in_bulk(submission.seen)
    facts = gather(tasks.values())
    changes = [
        change_of(seen, tasks.get(seen.id))
        for seen in submission.seen.values()
        if seen.id not in tasks or tasks[seen.id].version != seen.version
    ]
    rows = [row_of(submission, task, facts) for task in tasks.values()]
    return Preview(rows, changes, unserved_queues(tasks.values(), facts))


def row_of(submission: Submission, task: Task, facts: Facts) -> Row:
    finding = decide(task, facts)
    worker = facts.workers.get(task.claimed_by or "")
    return Row(
        task=task,
        seen=Seen.of(task),
        finding=finding,
        sign_of_life=sign_of_life(worker) if task.status == TaskStatus.PROCESSING else "",
        repeats=submission.action.repeats(task, finding),
    )


def change_of(seen: Seen, task: Task | None) -> Change:
    since = Intervention.objects.filter(target=audit.task(seen.id), version_after__gt=seen.version).order_by("id")
    return Change(seen.id, task, seen.differences(task) if task else [], list(since[:20]))


def was_done_by(actor: str, submission: Submission, changes: list[Change]) -> bool:
    """True if this very submission made every change: the second click of a double click."""
    return bool(changes) and all(
        any(
            entry.actor == actor
            and entry.action.split()[0] == submission.action.name
            and entry.version_before == submission.seen[change.id].version
            for entry in change.interventions
        )
        for change in changes
    )


def sign_of_life(worker: WorkerState | None) -> str:
    """A sentence with the age of the worker's heartbeat and the state of its session."""
    if worker is None or not worker.registered:
        return _("none: the worker is registered nowhere")
    told = {"age": spoken(worker.heartbeat_age_seconds or 0)}
    if worker.held:
        return _("heard %(age)s ago, its session is open") % told
    return _("heard %(age)s ago, its session is gone") % told


def unserved_queues(tasks: Iterable[Task], facts: Facts) -> list[Finding]:
    """One finding for each queue without a live worker."""
    firsts = {task.queue_name: task for task in tasks}
    return [no_worker(task, facts) for task in firsts.values() if is_unserved(task, facts)]
