"""The confirmation of an action on ticked tasks: what the operator saw, what it will do, and carrying it out."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.http import require_POST

from dashboard import links
from dashboard.layout import page
from dashboard.task_pages import CHANGED_FORM, VIEW, next_page, rejected
from dashboard.task_pages.actions import LIVE, PAGE_ACTIONS, Difference, PageAction, Seen, TaskRow
from dashboard.task_pages.listing import known_queues
from tasks.admin import rights
from tasks.admin.forms import OptionField, WholeNumberField, reason_of
from tasks.commands import types
from tasks.diagnosis import Facts, decide, gather
from tasks.diagnosis.decision import is_unserved, no_worker
from tasks.models import Intervention, Task, TaskStatus
from tasks.operations import Result, tokens
from tasks.operations.filters import InvalidFilter
from tasks.operations.verb import CHANGED, Refusal, Settings
from tasks.queue.presence import WorkerState
from tasks.support import audit
from tasks.support.addresses import address
from tasks.support.audit import Who
from tasks.support.durations import spoken

MOST_TASKS = 200
MOST_REFUSALS = 10  # shown one by one; the rest as a number
MOST_CHANGES = 20  # interventions shown for one task
LONGEST_SPREAD_MINUTES = 7 * 24 * 60


class SettingsForm(forms.Form):
    """Every field that an action may need."""

    queue_name = OptionField(
        types.destination, label=gettext_lazy("Queue"), widget=forms.TextInput(attrs={"list": "queues"})
    )
    priority = OptionField(types.priority, label=gettext_lazy("Priority, -100 to 100, optional"))
    run_after = OptionField(types.moment, label=gettext_lazy("Not before, like 2030-01-31T03:00:00+02:00"))
    spread_minutes = WholeNumberField(
        label=gettext_lazy("Spread over (minutes), optional"),
        required=False,
        min_value=1,
        max_value=LONGEST_SPREAD_MINUTES,
    )


class ActionRequest:
    """A person's request for an action, read from a form. Raises InvalidFilter, and Unreadable for its reason.

    `form` has the action's own fields, and `settings` those of them that are valid. `is_confirmed`: the person saw the
    preview and pressed its button. `token` tells a double click from another form.
    """

    def __init__(self, action: PageAction, post: QueryDict) -> None:
        self.action = action
        self.form = SettingsForm(post, auto_id="set-%s")
        for name in set(self.form.fields) - set(action.fields):
            del self.form.fields[name]
        self.form.is_valid()
        self.settings = Settings(reason=reason_of(post), force="force" in post, **self.form.cleaned_data)
        self.is_confirmed = "confirmed" in post
        self.token = post.get("token") or tokens.new_token()
        if not tokens.is_token(self.token):
            raise InvalidFilter(str(CHANGED_FORM))

    def fault(self) -> str:
        """The reason why it cannot be carried out as it stands, or an empty text."""
        if self.form.errors:
            return _("Correct what is marked below.")
        return self.action.fault(self.settings)

    def rehearse(self, tasks: Iterable[Task], who: Who) -> Result:
        """Perform the action on these tasks and roll it back."""
        versions = {task.pk: task.version for task in tasks}
        settings = replace(self.settings, reason=self.settings.reason or _("rehearsal"))
        return self.action.perform(versions, who, settings, dry_run=True) if versions else Result()

    def context(self, *, can_force: bool) -> dict[str, Any]:
        """The fields of the preview's form."""
        if self.action.needs_reason:
            label = _("Reason (audited)")
        elif can_force:
            label = _("Reason (audited), needed when you force")
        else:
            label = _("Reason (optional, audited)")
        return {
            "submission": self,
            "action": self.action,
            "can_force": can_force,
            "reason_label": label,
            "queues": known_queues() if self.action.fields else [],
        }


class Submission(ActionRequest):
    """A request for ticked tasks, as the person saw them; `only` (one row's button) overrides `seen`.

    Raises InvalidFilter for a form that was tampered with.
    """

    def __init__(self, action: PageAction, post: QueryDict) -> None:
        super().__init__(action, post)
        seen = [Seen.parse(text) for text in post.getlist("only") or post.getlist("seen")]
        if len(seen) > MOST_TASKS:
            raise InvalidFilter(f"That is more than {MOST_TASKS} tasks: choose fewer, or use the command.")
        self.seen = {row.id: row for row in seen}


@dataclass(frozen=True)
class Change:
    """A task that changed since the operator saw it, and people's interventions since. `task` is None if it is gone."""

    id: int
    task: Task | None
    differences: list[Difference]
    interventions: list[Intervention]


@dataclass(frozen=True, kw_only=True)
class PreviewRow(TaskRow):
    """One task of a preview. `refusal`: the reason why the action would not change it, or an empty text."""

    name: str
    sign_of_life: str
    repeats: str
    refusal: str


def preview_rows(action: PageAction, tasks: Iterable[Task], facts: Facts, rehearsal: Result) -> list[PreviewRow]:
    """The tasks as they are now, and the effect of the action on each."""
    rows = []
    for task in tasks:
        finding, refusal = decide(task, facts), rehearsal.refused.get(task.pk)
        worker = facts.workers.get(task.claimed_by or "")
        row = PreviewRow.of(
            task,
            finding,
            name=task.task_path.rpartition(".")[2],
            sign_of_life=sign_of_life(worker) if task.status == TaskStatus.PROCESSING else "",
            repeats=action.repeats(task, finding),
            refusal=refusal.sentence if refusal else "",
        )
        rows.append(row)
    return rows


def shared_risk(rows: list[PreviewRow]) -> str:
    """The risk that all these rows have, to be said once; empty if they differ."""
    return rows[0].repeats if len({row.repeats for row in rows}) == 1 else ""


def sign_of_life(worker: WorkerState | None) -> str:
    """A sentence with the age of the worker's heartbeat and the state of its session."""
    if worker is None or not worker.registered:
        return _("none: the worker is registered nowhere")
    shown = {"age": spoken(worker.heartbeat_age_seconds or 0)}
    if worker.held:
        return _("heard %(age)s ago, its session is open") % shown
    return _("heard %(age)s ago, its session is gone") % shown


def changes_of(submission: Submission, tasks: Mapping[int, Task]) -> list[Change]:
    """The tasks that are not as the operator saw them."""
    changes = []
    for seen in submission.seen.values():
        task = tasks.get(seen.id)
        if task is None or task.version != seen.version:
            since = Intervention.objects.filter(target=audit.task(seen.id), version_after__gt=seen.version)
            differences = seen.differences(task) if task else []
            changes.append(Change(seen.id, task, differences, list(since.order_by("id")[:MOST_CHANGES])))
    return changes


def known_action(name: str) -> PageAction:
    if name not in PAGE_ACTIONS:
        raise Http404(_("There is no such action."))
    return PAGE_ACTIONS[name]


@require_POST
def action_view(request: HttpRequest, name: str) -> HttpResponse:
    """Show the preview; once it is confirmed, perform the action."""
    action = known_action(name)
    rights.require(request.user, VIEW)
    rights.require(request.user, action.right)
    try:
        submission = Submission(action, request.POST)
    except InvalidFilter as error:
        return rejected(request, error)
    if not submission.seen:
        return rejected(request, _("Nothing is selected: tick the tasks first."))
    if not submission.is_confirmed or submission.fault():
        return preview_page(request, submission)
    target = tokens.once_within_seconds(submission.token, lambda: carry_out(submission, rights.who(request.user)))
    return answer(request, action, result_of(target)) if target else preview_page(request, submission)


def carry_out(submission: Submission, who: Who) -> str:
    """Perform the action; returns its result for `result_of`, or an empty text if it did nothing for a changed task."""
    if changes_of(submission, Task.objects.in_bulk(submission.seen)):
        return ""
    versions = {task_id: seen.version for task_id, seen in submission.seen.items()}
    result = submission.action.perform(versions, who, submission.settings)
    has_changed = any(refusal.code == CHANGED.code for refusal in result.refused.values())
    return "" if has_changed and not (result.done or result.asked) else json.dumps(asdict(result))


def result_of(text: str) -> Result:
    """Read the output of `carry_out`."""
    values = json.loads(text)
    refused = {int(task_id): Refusal(**refusal) for task_id, refusal in values.pop("refused").items()}
    return Result(**values, refused=refused)


def preview_page(request: HttpRequest, submission: Submission) -> HttpResponse:
    """Preview the action on the current rows; 409 if they changed since the operator saw them."""
    found = Task.objects.in_bulk(submission.seen)
    changes = changes_of(submission, found)
    action, tasks = submission.action, found.values()
    # A FAILED task needs no worker for its verdict, but one that can run it again.
    facts = gather(tasks, always_workers=True)
    rehearsal = submission.rehearse(tasks, rights.who(request.user))
    rows = preview_rows(action, tasks, facts, rehearsal)
    fault = submission.fault() if submission.is_confirmed and not changes else ""
    has_live = any(row.finding.verdict in LIVE for row in rows)
    queues = {task.queue_name: task for task in tasks} if action.makes_ready else {}
    context = {
        **submission.context(can_force=has_live and action.name == "requeue"),
        "changes": changes,
        "rows": rows,
        "risk": shared_risk(rows),
        "has_signs": any(row.sign_of_life for row in rows),
        "number_refused": len(rehearsal.refused),
        "unserved": [no_worker(task, facts) for task in queues.values() if is_unserved(task, facts)],
        "fault": fault,
        "next": next_page(request),
        "token": tokens.new_token(),
        "command": action.command(tasks, submission.settings),
    }
    status = 409 if changes else 400 if fault else 200
    return page(request, "task_pages/confirm.html", str(action.label), context, status=status)


def answer(request: HttpRequest, action: PageAction, result: Result) -> HttpResponse:
    """Redirect back with the result in messages, which link to the tasks."""
    if result.done:
        text = ngettext("%(label)s: done for %(ids)s.", "%(label)s: done for %(ids)s.", len(result.done))
        messages.success(request, links.sentence(text, label=str(action.label), ids=listed(result.done)))
    if result.asked:
        text = _("The workers of %(ids)s were asked to end them, and do so within moments.")
        messages.success(request, links.sentence(text, ids=listed(result.asked)))
    report_refusals(request, result)
    return HttpResponseRedirect(next_page(request))


def report_refusals(request: HttpRequest, result: Result) -> None:
    """One message for each of the first refused tasks, and one for the rest."""
    for task_id, refusal in list(result.refused.items())[:MOST_REFUSALS]:
        text = _("%(id)s not changed: %(reason)s.")
        messages.warning(request, links.sentence(text, id=listed([task_id]), reason=refusal.sentence))
    if len(result.refused) > MOST_REFUSALS:
        more = len(result.refused) - MOST_REFUSALS
        messages.warning(request, _("%(number)d more not changed.") % {"number": more})


def listed(ids: list[int]) -> SafeString:
    """Links to the first few tasks, and the number of the others."""
    pages = ((address("admin:tasks_task_change", task_id), task_id) for task_id in sorted(ids)[:MOST_REFUSALS])
    names = format_html_join(", ", '<a href="{}">#{}</a>', pages)
    if len(ids) <= MOST_REFUSALS:
        return names
    return links.sentence(_("%(names)s and %(more)s more"), names=names, more=str(len(ids) - MOST_REFUSALS))
