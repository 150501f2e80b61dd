"""Actions on everything that matches a filter: the preview with its count, and the runs in the background."""

from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST, require_safe

from dashboard import links
from dashboard.layout import page
from dashboard.task_pages import LIST, VIEW, next_page, rejected
from dashboard.task_pages.actions import PAGE_ACTIONS, PageAction, run_row, run_rows
from dashboard.task_pages.confirmation import ActionRequest, action_view, known_action, preview_rows, shared_risk
from tasks.admin import rights
from tasks.admin.forms import WholeNumberField, reason_of
from tasks.diagnosis import decide, gather
from tasks.diagnosis.finding import command
from tasks.models import BulkRun, Task, TaskStatus
from tasks.operations import Settings, bulk
from tasks.operations.bulk import Tally, add_refusals, highest_id, tally
from tasks.operations.filters import InvalidFilter, TaskFilter, parse_id
from tasks.operations.search import PageCursor, find
from tasks.support.addresses import address

LONGEST_FILTER = 20_000
MOST_LIMITED = 1000  # tasks of a limit, which are counted one by one
EXAMPLES = 5
REHEARSED = 200
EXAMPLE_SECONDS = 0.5
UNFIT_SECONDS = 0.5


class LimitForm(forms.Form):
    limit = WholeNumberField(
        label=gettext_lazy("Limit (the oldest first), optional"), required=False, min_value=1, max_value=MOST_LIMITED
    )


class BulkSubmission(ActionRequest):
    """A request for all matching tasks, from the form of the list or of a preview. Raises InvalidFilter.

    `subject`: the filter narrowed to the states that the action can change, and to ids up to `upto`, the highest one
    at the time of the preview. A request that comes without a token has seen no preview.
    """

    def __init__(self, action: PageAction, post: QueryDict) -> None:
        super().__init__(action, post)
        query, upto = post.get("filter", ""), post.get("upto", "")
        if len(query) > LONGEST_FILTER:
            raise InvalidFilter(_("The filter is too long to be kept: narrow it by fewer conditions."))
        self.chosen = TaskFilter.from_query(query)
        if self.chosen.is_empty:
            raise InvalidFilter(_("Narrow the list first: no action reaches every task there is."))
        self.upto = parse_id(upto) if upto else highest_id()
        self.subject = bulk.subject(action.name, self.chosen.within(self.upto))
        if not self.subject.statuses:
            raise InvalidFilter(_("No task in the states that the filter names can be changed like that."))
        self.is_confirmed = self.is_confirmed and bool(post.get("token") and upto)
        self.limits = LimitForm(post, auto_id="set-%s")

    def fault(self) -> str:
        return _("Correct what is marked below.") if self.limits.errors else super().fault()

    def last(self) -> int:
        """The highest id to act on: that of the last task within the limit, if one is given."""
        limit = self.limits.cleaned_data["limit"] if self.limits.is_valid() else None
        rows = find(self.subject, PageCursor(is_ascending=True), limit=limit).rows if limit else []
        return rows[-1].pk if rows else self.upto

    @property
    def statuses(self) -> tuple[str, ...]:
        return self.subject.statuses

    @property
    def command(self) -> str:
        """The command that does the same; empty as long as there is nothing to do."""
        is_vain = self.action.lacks_change(self.settings)
        return "" if is_vain else self.action.verb.command(self.subject, self.settings)


def unfit(submission: BulkSubmission) -> Tally:
    """Count the matching tasks in a state that the action cannot change, for at most UNFIT_SECONDS."""
    wanted = submission.chosen.statuses or TaskStatus.values
    statuses = [str(status) for status in wanted if status not in submission.statuses]
    if not statuses:
        return Tally()
    return tally(submission.chosen.with_statuses(*statuses), submission.upto, seconds=UNFIT_SECONDS)


@require_POST
def chosen_view(request: HttpRequest, name: str) -> HttpResponse:
    """Act on the ticked tasks, or with `all` on everything that matches; a row's own button acts on its row."""
    view = all_view if "all" in request.POST and "only" not in request.POST else action_view
    response: HttpResponse = view(request, name)
    return response


@require_POST
def all_view(request: HttpRequest, name: str) -> HttpResponse:
    """Show the preview; once it is confirmed, start the run."""
    action = known_action(name)
    rights.require(request.user, VIEW)
    rights.require(request.user, action.right)
    try:
        submission = BulkSubmission(action, request.POST)
    except InvalidFilter as error:
        return rejected(request, error)
    if not submission.is_confirmed or submission.fault():
        return preview_page(request, submission)
    who = rights.who(request.user)
    run_id = bulk.request(name, submission.subject, submission.last(), submission.settings, who, submission.token)
    url, back = address("admin:tasks_task_run", run_id), next_page(request)
    if not links.is_overview(back):
        return HttpResponseRedirect(url)
    run = links.anchor(_("Bulk run %(id)d") % {"id": run_id}, url)
    messages.success(request, links.sentence(_("%(label)s: %(run)s has started."), label=action.label, run=run))
    return HttpResponseRedirect(back)


def preview_page(request: HttpRequest, submission: BulkSubmission) -> HttpResponse:
    """Count, and rehearse on the newest tasks; takes about 2.5 seconds at most."""
    action, subject = submission.action, submission.subject
    tasks = find(subject, PageCursor(), limit=REHEARSED, seconds=EXAMPLE_SECONDS).rows
    result, examples = submission.rehearse(tasks, rights.who(request.user)), tasks[:EXAMPLES]
    refusals: dict[str, Any] = {}
    add_refusals(refusals, result)
    fault = submission.fault() if submission.is_confirmed else ""
    rows = preview_rows(action, examples, gather(examples), result)
    context = {
        **submission.context(can_force=action.name == "requeue" and TaskStatus.PROCESSING in subject.statuses),
        "tally": tally(subject, submission.upto),
        "unfit": unfit(submission),
        "rows": rows,
        "risk": shared_risk(rows),
        "rehearsed": len(tasks),
        "refusals": sorted(refusals.items()),
        "fault": fault,
        "next": next_page(request),
        "query": submission.chosen.as_query(),
    }
    return page(request, "task_pages/bulk_confirm.html", str(action.label), context, status=400 if fault else 200)


@require_safe
def runs_view(request: HttpRequest) -> HttpResponse:
    rights.require(request.user, VIEW)
    context = {"runs": run_rows(BulkRun.objects.all())}
    return page(request, "task_pages/bulk_runs.html", _("Bulk runs"), context)


@require_safe
def run_view(request: HttpRequest, run_id: int) -> HttpResponse:
    """The progress of a run; htmx gets the part that refreshes itself, and a full reload at the end."""
    rights.require(request.user, VIEW)
    run = existing_run(run_id)
    context = run_context(run, request.user)
    is_part = "HX-Request" in request.headers
    if is_part and context["is_over"]:
        return HttpResponse(headers={"HX-Refresh": "true"})
    if is_part:
        return TemplateResponse(request, "task_pages/_bulk_run.html", context)
    return page(request, "task_pages/bulk_run.html", _("Bulk run %(id)d") % {"id": run.pk}, context)


@require_POST
def stop_view(request: HttpRequest, run_id: int) -> HttpResponse:
    """End a run after the current chunk."""
    rights.require(request.user, VIEW)
    run = existing_run(run_id)
    rights.require(request.user, PAGE_ACTIONS[run.action].right)
    bulk.stop(run, rights.who(request.user), reason=reason_of(request.POST))
    return HttpResponseRedirect(address("admin:tasks_task_run", run.pk))


def existing_run(run_id: int) -> BulkRun:
    run = BulkRun.objects.filter(pk=run_id).first()
    if run is None:
        raise Http404(_("The run does not exist: it was pruned, or the address is wrong."))
    return run


def run_context(run: BulkRun, user: Any) -> dict[str, Any]:
    """One run: its numbers, the verdict on its task, and its settings."""
    task = Task.objects.filter(pk=run.task_id or 0).first()
    facts = gather([task] if task else [])
    row, settings = run_row(run, task), Settings.from_json(run.options)
    chosen = TaskFilter.from_query(run.filter)
    return {
        "run": run,
        "action": row.action,
        "task": task,
        "finding": decide(task, facts) if task else None,
        "now": facts.now,
        "is_over": row.is_over,
        "refusals": sorted(run.refusals.items()),
        "settings": settings,
        "chosen": chosen,
        "command": row.action.verb.command(chosen, settings),
        "stop_command": command("stop_bulk_run", str(run.pk)),
        "undo_command": command("quarantine_tasks", "--undo", "--queue", "quarantine"),
        "missing_right": rights.missing(user, row.action.right),
        "list_url": f"{address(LIST)}?{run.filter}",
    }
