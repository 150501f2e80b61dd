"""The confirmation of an action on ticked tasks: what the operator saw, what it will do, and carrying it out."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.http import require_POST

from dashboard.task_pages import VIEW, next_page, page, rejected
from dashboard.task_pages.actions import LIVE, PAGE_ACTIONS, Difference, PageAction, Seen, TaskRow
from dashboard.task_pages.listing import known_queues
from tasks.admin import rights
from tasks.admin.forms import OptionField, WholeNumberField, reason_of
from tasks.commands import types
from tasks.diagnosis import Facts, Finding, decide, gather
from tasks.diagnosis.decision import is_unserved, no_worker
from tasks.models import Intervention, Task, TaskStatus
from tasks.operations import Result
from tasks.operations.filters import InvalidFilter
from tasks.operations.verb import CHANGED, Settings
from tasks.queue.presence import WorkerState
from tasks.support import audit
from tasks.support.audit import Who
from tasks.support.durations import spoken

MOST_TASKS = 200
MOST_REFUSALS = 10  # shown one by one; the rest as a number
LONGEST_SPREAD_MINUTES = 7 * 24 * 60


class SettingsForm(forms.Form):
    """Every field that an action may need; `form_of` keeps those of one action."""

    queue_name = OptionField(
        types.destination, label=gettext_lazy("Queue"), widget=forms.TextInput(attrs={"list": "queues"})
    )
    priority = OptionField(types.priority, label=gettext_lazy("Priority, -100 to 100; 100 runs first"))
    run_after = OptionField(types.moment, label=gettext_lazy("Not before, like 2030-01-31T03:00:00+02:00, or now"))
    spread_minutes = WholeNumberField(
        label=gettext_lazy("Spread evenly over so many minutes; empty: all at once"),
        required=False,
        min_value=1,
        max_value=LONGEST_SPREAD_MINUTES,
    )


@dataclass(frozen=True, kw_only=True)
class ActionRequest:
    """A person's request for an action. `is_confirmed`: the person saw the preview and pressed its button."""

    action: PageAction
    form: SettingsForm
    settings: Settings
    is_confirmed: bool = False

    def fault(self) -> str:
        """The reason why it cannot be carried out as it stands, or an empty text."""
        if self.form.errors:
            return _("Correct what is marked below.")
        return self.action.fault(self.settings)


def form_context(submission: ActionRequest, *, can_force: bool) -> dict[str, Any]:
    """The fields of the preview's form."""
    if submission.action.needs_reason:
        label = _("Reason, kept in the audit")
    elif can_force:
        label = _("Reason, kept in the audit; needed when you force")
    else:
        label = _("Reason, kept in the audit; may be empty")
    return {
        "submission": submission,
        "action": submission.action,
        "can_force": can_force,
        "reason_label": label,
        "queues": known_queues() if submission.action.fields else [],
    }


def settings_from(action: PageAction, post: QueryDict) -> dict[str, Any]:
    """The form with the action's fields, and Settings with its valid values. Raises Unreadable for the reason."""
    form = SettingsForm(post, auto_id="set-%s")
    for name in set(form.fields) - set(action.fields):
        del form.fields[name]
    form.is_valid()
    settings = Settings(reason=reason_of(post), force="force" in post, **form.cleaned_data)
    return {"action": action, "form": form, "settings": settings}


@dataclass(frozen=True, kw_only=True)
class Submission(ActionRequest):
    """A request for ticked tasks, as the person saw them."""

    seen: dict[int, Seen]

    @classmethod
    def from_post(cls, action: PageAction, post: QueryDict) -> Self:
        """Read the form of a list, a row, a detail page or a preview; `only` (one row's button) overrides `seen`.

        Raises InvalidFilter for a form that was tampered with.
        """
        seen = [Seen.parse(text) for text in post.getlist("only") or post.getlist("seen")]
        if len(seen) > MOST_TASKS:
            raise InvalidFilter(f"That is more than {MOST_TASKS} tasks: choose fewer, or use the command.")
        seen_by_id = {row.id: row for row in seen}
        return cls(seen=seen_by_id, is_confirmed="confirmed" in post, **settings_from(action, post))

    @property
    def versions(self) -> dict[int, int]:
        return {task_id: seen.version for task_id, seen in self.seen.items()}


@dataclass(frozen=True)
class Change:
    """A task that changed since the operator saw it, and people's interventions since. `task` is None if it is gone."""

    id: int
    task: Task | None
    differences: list[Difference]
    interventions: list[Intervention]


@dataclass(frozen=True, kw_only=True)
class PreviewRow(TaskRow):
    """One task of a preview. `refusal`: the reason why the action would leave it as it is, or an empty text."""

    sign_of_life: str
    repeats: str
    refusal: str


def preview_rows(action: PageAction, tasks: Iterable[Task], facts: Facts, rehearsal: Result) -> list[PreviewRow]:
    """The tasks as they are now, and the effect of the action on each."""
    rows = []
    for task in tasks:
        finding, refusal = decide(task, facts), rehearsal.refused.get(task.pk)
        worker = facts.workers.get(task.claimed_by or "")
        row = PreviewRow(
            **PreviewRow.values(task, finding),
            sign_of_life=sign_of_life(worker) if task.status == TaskStatus.PROCESSING else "",
            repeats=action.repeats(task, finding),
            refusal=refusal.sentence if refusal else "",
        )
        rows.append(row)
    return rows


def rehearse(submission: ActionRequest, tasks: Iterable[Task], who: Who) -> Result:
    """Perform the action on these tasks and roll it back."""
    versions = {task.pk: task.version for task in tasks}
    settings = replace(submission.settings, reason=submission.settings.reason or _("rehearsal"))
    return submission.action.perform(versions, who, settings, dry_run=True) if versions else Result()


def changes_of(submission: Submission, tasks: Mapping[int, Task]) -> list[Change]:
    """The tasks that are not as the operator saw them."""
    return [
        change_of(seen, tasks.get(seen.id))
        for seen in submission.seen.values()
        if seen.id not in tasks or tasks[seen.id].version != seen.version
    ]


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
    shown = {"age": spoken(worker.heartbeat_age_seconds or 0)}
    if worker.held:
        return _("heard %(age)s ago, its session is open") % shown
    return _("heard %(age)s ago, its session is gone") % shown


def unserved_queues(tasks: Iterable[Task], facts: Facts) -> list[Finding]:
    """One finding for each queue without a live worker."""
    firsts = {task.queue_name: task for task in tasks}
    return [no_worker(task, facts) for task in firsts.values() if is_unserved(task, facts)]


def paths(view: Callable[..., Any]) -> list[URLPattern]:
    return [path("do/<slug:name>/", view(action_view), name="tasks_task_action")]


def action_view(request: HttpRequest, name: str) -> HttpResponse:
    """Show the preview; once it is confirmed, perform the action."""
    action = known_action(name)
    return require_POST(submit)(request, action)


def known_action(name: str) -> PageAction:
    if name not in PAGE_ACTIONS:
        raise Http404(_("There is no such action."))
    return PAGE_ACTIONS[name]


def submit(request: HttpRequest, action: PageAction) -> HttpResponse:
    rights.require(request.user, VIEW)
    rights.require(request.user, action.right)
    try:
        submission = Submission.from_post(action, request.POST)
    except InvalidFilter as error:
        return rejected(request, str(error))
    if not submission.seen:
        return rejected(request, _("Nothing is selected: tick the tasks first."))
    who, tasks = rights.who(request.user), Task.objects.in_bulk(submission.seen)
    changes = changes_of(submission, tasks)
    if changes and was_done_by(who.actor, submission, changes):
        return answer(request, action, Result(done=list(submission.seen)))
    if changes or not submission.is_confirmed or submission.fault():
        return preview_page(request, submission, tasks, changes)
    result = action.perform(submission.versions, who, submission.settings)
    if any(refusal.code == CHANGED.code for refusal in result.refused.values()):
        tasks = Task.objects.in_bulk(submission.seen)
        return preview_page(request, submission, tasks, changes_of(submission, tasks))
    return answer(request, action, result)


def preview_page(
    request: HttpRequest, submission: Submission, tasks: Mapping[int, Task], changes: list[Change]
) -> HttpResponse:
    """Preview the action on the current rows; 409 if they changed since the operator saw them."""
    action, facts = submission.action, gather(tasks.values())
    rehearsal = rehearse(submission, tasks.values(), rights.who(request.user))
    rows = preview_rows(action, tasks.values(), facts, rehearsal)
    fault = submission.fault() if submission.is_confirmed and not changes else ""
    has_live = any(row.finding.verdict in LIVE for row in rows)
    context = {
        **form_context(submission, can_force=has_live and action.name == "requeue"),
        "changes": changes,
        "rows": rows,
        "number_refused": len(rehearsal.refused),
        "unserved": unserved_queues(tasks.values(), facts) if action.name != "cancel" else [],
        "fault": fault,
        "next": next_page(request),
        "command": action.command(sorted(tasks), submission.settings),
    }
    status = 409 if changes else 400 if fault else 200
    return page(request, "confirm.html", str(action.label), context, status=status)


def answer(request: HttpRequest, action: PageAction, result: Result) -> HttpResponse:
    for level, text in result_messages(action, result):
        messages.add_message(request, level, text)
    return HttpResponseRedirect(next_page(request))


def result_messages(action: PageAction, result: Result) -> list[tuple[int, str]]:
    """Messages for the operator: pairs of a level of `django.contrib.messages` and a sentence."""
    answers = []
    if result.done:
        text = ngettext("%(label)s: done for %(ids)s.", "%(label)s: done for %(ids)s.", len(result.done))
        answers.append((messages.SUCCESS, text % {"label": action.label, "ids": listed(result.done)}))
    if result.asked:
        text = _("The workers of %(ids)s were asked to end them, and do so within moments.")
        answers.append((messages.SUCCESS, text % {"ids": listed(result.asked)}))
    for task_id, refusal in list(result.refused.items())[:MOST_REFUSALS]:
        answers.append(
            (messages.WARNING, _("#%(id)d stays as it is: %(reason)s.") % {"id": task_id, "reason": refusal.sentence})
        )
    if len(result.refused) > MOST_REFUSALS:
        more = len(result.refused) - MOST_REFUSALS
        answers.append((messages.WARNING, _("%(number)d more stay as they are.") % {"number": more}))
    return answers


def listed(ids: list[int]) -> str:
    """The first few ids as text, and the number of the others."""
    names = ", ".join(f"#{task_id}" for task_id in sorted(ids)[:MOST_REFUSALS])
    if len(ids) <= MOST_REFUSALS:
        return names
    return _("%(names)s and %(more)d more") % {"names": names, "more": len(ids) - MOST_REFUSALS}
