"""Actions on everything that matches the list's filter: preview, confirmation, and the page of a run."""

from typing import Any, NamedTuple

from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from tasks.admin import rights
from tasks.admin.bulk_submission import BulkSubmission, preview
from tasks.admin.listing import known_queues
from tasks.admin.page_actions import PAGE_ACTIONS, PageAction
from tasks.admin.submission import reason_of
from tasks.admin.task_pages import LIST, VIEW, TaskPages
from tasks.bulk import runs
from tasks.bulk.instruction import Settings
from tasks.bulk.models import BulkRun
from tasks.bulk.words import command_of
from tasks.filters import InvalidFilter
from tasks.list_filter import ListFilter
from tasks.models import Task, TaskStatus
from tasks.verdicts import decide, gather
from tasks.verdicts.words import command

SHOWN_RUNS = 50


class BulkViews(TaskPages):
    """The part of `TaskAdmin` for many tasks at once."""

    def bulk_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("all/<slug:name>/", view(require_POST(self.all_view)), name="tasks_task_all"),
            path("runs/", view(require_safe(self.runs_view)), name="tasks_task_runs"),
            path("runs/<int:run_id>/", view(require_safe(self.run_view)), name="tasks_task_run"),
            path("runs/<int:run_id>/stop/", view(require_POST(self.stop_view)), name="tasks_task_run_stop"),
        ]

    def all_view(self, request: HttpRequest, name: str) -> HttpResponse:
        """Show the preview; once it is confirmed, start the run."""
        action = PAGE_ACTIONS.get(name)
        if action is None:
            raise Http404(_("There is no such action."))
        rights.require(request.user, VIEW)
        rights.require(request.user, action.right)
        try:
            submission = BulkSubmission.from_post(action, request.POST)
        except InvalidFilter as error:
            return self.rejected(request, str(error))
        if not submission.is_confirmed or submission.fault():
            return self._preview_all(request, submission)
        who = rights.who(request.user)
        asked = runs.ask(name, submission.subject, submission.upto, submission.settings, who, submission.token)
        return HttpResponseRedirect(reverse("admin:tasks_task_run", args=[asked.run_id]))

    def _preview_all(self, request: HttpRequest, submission: BulkSubmission) -> HttpResponse:
        fault = submission.fault() if submission.is_confirmed else ""
        context = {
            "submission": submission,
            "action": submission.action,
            "preview": preview(submission, rights.who(request.user)),
            "fault": fault,
            "next": self.next_page(request),
            "query": submission.chosen.as_query(),
            "queues": known_queues() if submission.action.fields else [],
        }
        title = str(submission.action.label)
        return self.page(request, "bulk_confirm.html", title, context, status=400 if fault else 200)

    def runs_view(self, request: HttpRequest) -> HttpResponse:
        rights.require(request.user, VIEW)
        return self.page(request, "bulk_runs.html", _("Bulk runs"), {"runs": lines(BulkRun.objects.all())})

    def run_view(self, request: HttpRequest, run_id: int) -> HttpResponse:
        """The progress of a run; htmx gets the part that refreshes itself, and a full reload at the end."""
        rights.require(request.user, VIEW)
        run = BulkRun.objects.filter(pk=run_id).first()
        if run is None:
            raise Http404(_("There is no such run: it was pruned, or the address is wrong."))
        context = run_context(run, request.user)
        is_part = "HX-Request" in request.headers
        if is_part and context["is_over"]:
            return HttpResponse(headers={"HX-Refresh": "true"})
        if is_part:
            return TemplateResponse(request, "admin/tasks/task/_bulk_run.html", context)
        return self.page(request, "bulk_run.html", _("Bulk run %(id)d") % {"id": run.pk}, context)

    def stop_view(self, request: HttpRequest, run_id: int) -> HttpResponse:
        """End a run after the current chunk."""
        rights.require(request.user, VIEW)
        run = BulkRun.objects.filter(pk=run_id).first()
        if run is None:
            raise Http404(_("There is no such run: it was pruned, or the address is wrong."))
        rights.require(request.user, PAGE_ACTIONS[run.action].right)
        runs.stop(run, rights.who(request.user), reason=reason_of(request.POST))
        return HttpResponseRedirect(reverse("admin:tasks_task_run", args=[run.pk]))


class Line(NamedTuple):
    """One run in a list: its action, and its state in words."""

    run: BulkRun
    action: PageAction
    state: str
    is_over: bool


def lines(runs: "QuerySet[BulkRun]") -> list[Line]:
    """The latest of these runs, read in two statements."""
    found = list(runs.order_by("-pk")[:SHOWN_RUNS])
    tasks = Task.objects.in_bulk([run.task_id for run in found if run.task_id])
    return [line_of(run, tasks.get(run.task_id or 0)) for run in found]


def line_of(run: BulkRun, task: Task | None) -> Line:
    action = PAGE_ACTIONS[run.action]
    if run.finished_at is not None:
        return Line(run, action, _("Stopped") if run.stop_requested_at else _("Done"), is_over=True)
    if task is None or task.finished_at is not None:
        return Line(run, action, _("Given up: its task has ended"), is_over=True)
    if task.status == TaskStatus.PROCESSING:
        return Line(run, action, _("Under way"), is_over=False)
    return Line(run, action, _("Waits for a worker"), is_over=False)


def under_way() -> list[Line]:
    """Runs that have not ended yet."""
    return [line for line in lines(BulkRun.objects.filter(finished_at__isnull=True)) if not line.is_over]


def run_context(run: BulkRun, user: Any) -> dict[str, Any]:
    """One run: its numbers, the verdict on its task, and its settings."""
    task = Task.objects.filter(pk=run.task_id or 0).first()
    facts = gather([task] if task else [])
    action, settings = PAGE_ACTIONS[run.action], Settings.from_json(run.options)
    chosen = ListFilter.from_query(run.filter)
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
        "command": command_of(run.action, chosen, settings),
        "stop_command": command("stop_bulk_run", str(run.pk)),
        "undo_command": command("quarantine_tasks", "--undo", "--queue", "quarantine"),
        "missing_right": rights.missing(user, action.right),
        "list_url": f"{reverse(LIST)}?{run.filter}",
    }
