"""The pages of tasks: the list, one task, and a person's actions on them."""

from dataclasses import replace
from typing import Any

from django.contrib import admin, messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_POST

from tasks.admin import pages, rights
from tasks.admin.bulk import BulkViews, under_way
from tasks.admin.enqueue import EnqueueViews
from tasks.admin.listing import Place, known_queues
from tasks.admin.page_actions import PAGE_ACTIONS, Outcome, PageAction
from tasks.admin.submission import Preview, Submission, preview, was_done_by
from tasks.admin.task_pages import VIEW, WhyViews
from tasks.models import Task
from tasks.operations.filters import InvalidFilter, ListFilter
from tasks.support.audit import Who

EVERY_SECONDS = 3  # the list refreshes itself
MOST_TOLD = 10  # refusals shown one by one; the rest as a number


@admin.register(Task)
class TaskAdmin(BulkViews, WhyViews, EnqueueViews):
    """See and repair tasks. Programs create them and `tasks.operations` changes them, so there is no form."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("", view(self.changelist_view), name="tasks_task_changelist"),
            path("do/<slug:name>/", view(self.action_view), name="tasks_task_action"),
            *self.bulk_urls(),
            *self.why_urls(),
            *self.enqueue_urls(),
            path("<int:task_id>/", view(self.detail_view), name="tasks_task_change"),
        ]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Task | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Task | None = None) -> bool:
        return False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The list; its URL holds the filter and the page."""
        rights.require(request.user, VIEW)
        try:
            chosen, place = ListFilter.from_params(request.GET), Place.from_params(request.GET)
        except InvalidFilter as error:
            context = {"fault": str(error), **pages.filter_context(ListFilter())}
            return self.page(request, "change_list.html", _("Tasks"), context, status=400)

        def rows(_request: HttpRequest) -> dict[str, Any]:
            return pages.rows_context(chosen, place)

        part = self.part("admin/tasks/task/_rows.html", rows, every=EVERY_SECONDS)
        if "HX-Request" in request.headers:
            return part.answer(request)
        context = pages.list_context(chosen, place, request.user)
        if context["is_live"]:
            part.expect(request)
        context |= {"runs_under_way": under_way(), "every": EVERY_SECONDS}
        return self.page(request, "change_list.html", _("Tasks"), context)

    def detail_view(self, request: HttpRequest, task_id: int) -> HttpResponse:
        rights.require(request.user, VIEW)
        task = Task.objects.filter(pk=task_id).first()
        if task is None:
            raise Http404(_("There is no task #%(id)d: it was pruned, or the id is wrong.") % {"id": task_id})
        context = pages.detail_context(task, request.user)
        if "HX-Request" in request.headers:
            return TemplateResponse(request, "admin/tasks/task/_detail.html", context)
        return self.page(request, "detail.html", f"#{task.pk}", context)

    def action_view(self, request: HttpRequest, name: str) -> HttpResponse:
        """Show the preview; once it is confirmed, perform the action."""
        action = PAGE_ACTIONS.get(name)
        if action is None:
            raise Http404(_("There is no such action."))
        return require_POST(self._submit)(request, action)

    def _submit(self, request: HttpRequest, action: PageAction) -> HttpResponse:
        rights.require(request.user, VIEW)
        rights.require(request.user, action.right)
        try:
            submission = Submission.from_post(action, request.POST)
        except InvalidFilter as error:
            return self.rejected(request, str(error))
        if not submission.seen:
            return self.rejected(request, _("Nothing is selected: tick the tasks first."))
        who = rights.who(request.user)
        found = preview(submission)
        if found.changes and was_done_by(who.actor, submission, found.changes):
            return self._answer(request, action, Outcome(done=list(submission.seen)))
        if found.changes or not submission.is_confirmed or submission.fault():
            return self._preview(request, submission, found, who)
        outcome = action.perform(submission.versions, who, submission.settings)
        if outcome.changed:
            return self._preview(request, submission, preview(submission), who)
        return self._answer(request, action, outcome)

    def _preview(self, request: HttpRequest, submission: Submission, found: Preview, who: Who) -> HttpResponse:
        """Preview the action on the current rows; 409 if they changed since the operator saw them."""
        current = {row.task.pk: row.task.version for row in found.rows}
        settings = submission.settings
        rehearsed = replace(settings, reason=settings.reason or _("rehearsal"))
        rehearsal = submission.action.perform(current, who, rehearsed, dry_run=True)
        fault = submission.fault() if submission.is_confirmed and not found.changes else ""
        context = {
            "submission": submission,
            "action": submission.action,
            "preview": found,
            "rehearsal": rehearsal,
            "fault": fault,
            "next": self.next_page(request),
            "command": submission.action.command(sorted(current), settings),
            "queues": known_queues() if submission.action.fields else [],
        }
        status = 409 if found.changes else 400 if fault else 200
        return self.page(request, "confirm.html", str(submission.action.label), context, status=status)

    def _answer(self, request: HttpRequest, action: PageAction, outcome: Outcome) -> HttpResponse:
        for level, text in told(action, outcome):
            messages.add_message(request, level, text)
        return HttpResponseRedirect(self.next_page(request))


def told(action: PageAction, outcome: Outcome) -> list[tuple[int, str]]:
    """Messages for the operator: pairs of a level of `django.contrib.messages` and a sentence."""
    answers = []
    if outcome.done:
        text = ngettext("%(label)s: done for %(ids)s.", "%(label)s: done for %(ids)s.", len(outcome.done))
        answers.append((messages.SUCCESS, text % {"label": action.label, "ids": listed(outcome.done)}))
    if outcome.asked:
        text = _("The workers of %(ids)s were asked to end them, and do so within moments.")
        answers.append((messages.SUCCESS, text % {"ids": listed(outcome.asked)}))
    for task_id, reason in list(outcome.refused.items())[:MOST_TOLD]:
        answers.append((messages.WARNING, _("#%(id)d stays as it is: %(reason)s.") % {"id": task_id, "reason": reason}))
    if len(outcome.refused) > MOST_TOLD:
        more = len(outcome.refused) - MOST_TOLD
        answers.append((messages.WARNING, _("%(number)d more stay as they are.") % {"number": more}))
    return answers


def listed(ids: list[int]) -> str:
    """The first few ids as text, and the number of the others."""
    names = ", ".join(f"#{task_id}" for task_id in sorted(ids)[:MOST_TOLD])
    if len(ids) <= MOST_TOLD:
        return names
    return _("%(names)s and %(more)d more") % {"names": names, "more": len(ids) - MOST_TOLD}
