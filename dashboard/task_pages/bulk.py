"""Actions on everything that matches a filter: the preview with its count, and the runs in the background."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from dashboard.task_pages import LIST, VIEW, next_page, page, rejected
from dashboard.task_pages.actions import PAGE_ACTIONS, PageAction, run_rows
from dashboard.task_pages.confirmation import (
    ActionRequest,
    form_context,
    known_action,
    preview_rows,
    rehearse,
    settings_from,
)
from dashboard.task_pages.listing import PageCursor, find
from tasks.admin import rights
from tasks.admin.forms import reason_of
from tasks.diagnosis import decide, gather
from tasks.diagnosis.finding import command
from tasks.models import BulkRun, Task, TaskStatus
from tasks.operations import Settings, bulk, tokens
from tasks.operations.bulk import Tally, add_refusals, highest_id, tally
from tasks.operations.filters import InvalidFilter, TaskFilter, parse_id
from tasks.support.audit import Who

LONGEST_FILTER = 20_000
EXAMPLES = 5
REHEARSED = 200
EXAMPLE_SECONDS = 0.5
UNFIT_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class BulkSubmission(ActionRequest):
    """`upto`: the highest id at the time of the preview; `token` lets the request run only once."""

    chosen: TaskFilter
    upto: int
    token: str

    @classmethod
    def from_post(cls, action: PageAction, post: QueryDict) -> Self:
        """Read the form of the list or of a preview. Raises InvalidFilter."""
        if len(post.get("filter", "")) > LONGEST_FILTER:
            raise InvalidFilter(_("The filter is too long to be kept: narrow it by fewer conditions."))
        chosen = TaskFilter.from_query(post.get("filter", ""))
        if chosen.is_empty:
            raise InvalidFilter(_("Narrow the list first: no action reaches every task there is."))
        if not tokens.is_token(post.get("token", "") or tokens.new_token()):
            raise InvalidFilter(_("The form was changed on its way: go back, load the page anew and try again."))
        submission = cls(
            chosen=chosen,
            upto=parse_id(post.get("upto", "")) if post.get("upto") else highest_id(),
            token=post.get("token") or tokens.new_token(),
            is_confirmed="confirmed" in post and bool(post.get("token")) and bool(post.get("upto")),
            **settings_from(action, post),
        )
        if not submission.statuses:
            raise InvalidFilter(_("No task in the states that the filter names can be changed like that."))
        return submission

    @property
    def statuses(self) -> list[TaskStatus]:
        """The states that the action can change and that the filter includes."""
        wanted = self.action.verb.statuses
        return [status for status in wanted if not self.chosen.statuses or status in self.chosen.statuses]

    @property
    def subject(self) -> TaskFilter:
        """The filter narrowed to these states."""
        return self.chosen.with_statuses(*map(str, self.statuses))

    @property
    def command(self) -> str:
        return self.action.verb.command(self.subject, self.settings)


def preview(submission: BulkSubmission, who: Who) -> dict[str, Any]:
    """Count, and rehearse on the newest tasks; takes about 2.5 seconds at most."""
    bounded = submission.subject.within(submission.upto)
    tasks = find(bounded, PageCursor(), limit=REHEARSED, seconds=EXAMPLE_SECONDS).rows
    result, examples = rehearse(submission, tasks, who), tasks[:EXAMPLES]
    refusals: dict[str, Any] = {}
    add_refusals(refusals, result)
    return {
        "tally": tally(submission.subject, submission.upto),
        "unfit": unfit(submission),
        "rows": preview_rows(submission.action, examples, gather(examples), result),
        "rehearsed": len(tasks),
        "refusals": sorted(refusals.items()),
    }


def unfit(submission: BulkSubmission) -> Tally:
    """Count the matching tasks in a state that the action cannot change, for at most UNFIT_SECONDS."""
    wanted = submission.chosen.statuses or TaskStatus.values
    statuses = [str(status) for status in wanted if status not in submission.statuses]
    if not statuses:
        return Tally()
    return tally(submission.chosen.with_statuses(*statuses), submission.upto, seconds=UNFIT_SECONDS)


def paths(view: Callable[..., Any]) -> list[URLPattern]:
    return [
        path("all/<slug:name>/", view(all_view), name="tasks_task_all"),
        path("runs/", view(runs_view), name="tasks_task_runs"),
        path("runs/<int:run_id>/", view(run_view), name="tasks_task_run"),
        path("runs/<int:run_id>/stop/", view(stop_view), name="tasks_task_run_stop"),
    ]


@require_POST
def all_view(request: HttpRequest, name: str) -> HttpResponse:
    """Show the preview; once it is confirmed, start the run."""
    action = known_action(name)
    rights.require(request.user, VIEW)
    rights.require(request.user, action.right)
    try:
        submission = BulkSubmission.from_post(action, request.POST)
    except InvalidFilter as error:
        return rejected(request, str(error))
    if not submission.is_confirmed or submission.fault():
        return preview_page(request, submission)
    who = rights.who(request.user)
    run_id = bulk.request(name, submission.subject, submission.upto, submission.settings, who, submission.token)
    return HttpResponseRedirect(reverse("admin:tasks_task_run", args=[run_id]))


def preview_page(request: HttpRequest, submission: BulkSubmission) -> HttpResponse:
    fault = submission.fault() if submission.is_confirmed else ""
    can_force = submission.action.name == "requeue" and TaskStatus.PROCESSING in submission.statuses
    context = {
        **form_context(submission, can_force=can_force),
        **preview(submission, rights.who(request.user)),
        "fault": fault,
        "next": next_page(request),
        "query": submission.chosen.as_query(),
    }
    title = str(submission.action.label)
    return page(request, "bulk_confirm.html", title, context, status=400 if fault else 200)


@require_safe
def runs_view(request: HttpRequest) -> HttpResponse:
    rights.require(request.user, VIEW)
    return page(request, "bulk_runs.html", _("Bulk runs"), {"runs": run_rows(BulkRun.objects.all())})


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
    return page(request, "bulk_run.html", _("Bulk run %(id)d") % {"id": run.pk}, context)


@require_POST
def stop_view(request: HttpRequest, run_id: int) -> HttpResponse:
    """End a run after the current chunk."""
    rights.require(request.user, VIEW)
    run = existing_run(run_id)
    rights.require(request.user, PAGE_ACTIONS[run.action].right)
    bulk.stop(run, rights.who(request.user), reason=reason_of(request.POST))
    return HttpResponseRedirect(reverse("admin:tasks_task_run", args=[run.pk]))


def existing_run(run_id: int) -> BulkRun:
    run = BulkRun.objects.filter(pk=run_id).first()
    if run is None:
        raise Http404(_("There is no such run: it was pruned, or the address is wrong."))
    return run


def run_context(run: BulkRun, user: Any) -> dict[str, Any]:
    """One run: its numbers, the verdict on its task, and its settings."""
    task = Task.objects.filter(pk=run.task_id or 0).first()
    facts = gather([task] if task else [])
    action, settings = PAGE_ACTIONS[run.action], Settings.from_json(run.options)
    chosen = TaskFilter.from_query(run.filter)
    return {
        "run": run,
        "action": action,
        "task": task,
        "finding": decide(task, facts) if task else None,
        "now": facts.now,
        "is_over": run.finished_at is not None or task is None or task.finished_at is not None,
        "refusals": sorted(run.refusals.items()),
        "settings": settings,
        "chosen": chosen,
        "command": action.verb.command(chosen, settings),
        "stop_command": command("stop_bulk_run", str(run.pk)),
        "undo_command": command("quarantine_tasks", "--undo", "--queue", "quarantine"),
        "missing_right": rights.missing(user, action.right),
        "list_url": f"{reverse(LIST)}?{run.filter}",
    }
