"""The common base of the tasks' pages: layout, return address and refusals."""

from collections.abc import Callable
from typing import Any, Protocol, cast

from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from tasks.admin import rights
from tasks.diagnosis import why

VIEW = "tasks.view_task"
LIST = "admin:tasks_task_changelist"


Context = Callable[[HttpRequest], dict[str, Any]]


class Part(Protocol):
    """A part of a page that refreshes itself: `answer` responds to htmx, `expect` prepares it when the page opens."""

    def answer(self, request: HttpRequest) -> HttpResponse: ...

    def expect(self, request: HttpRequest) -> None: ...


class SiteWithParts(Protocol):
    """The interface that these pages need from the admin site."""

    def part(self, template: str, context: Context, *, every: float) -> Part: ...


class TaskPages(admin.ModelAdmin):
    """The base of the parts of `TaskAdmin`."""

    def next_page(self, request: HttpRequest) -> str:
        """The page with the pressed button, including its filter; the list if that is no operators' page."""
        wanted, pages_of_operators = request.POST.get("next", ""), reverse("admin:index") + "ops/"
        is_ours = wanted.startswith((reverse(LIST), pages_of_operators))
        if is_ours and url_has_allowed_host_and_scheme(wanted, allowed_hosts=None):
            return wanted
        return reverse(LIST)

    def rejected(self, request: HttpRequest, reason: str) -> HttpResponse:
        """Redirect back with the reason why nothing was done."""
        messages.error(request, reason)
        return HttpResponseRedirect(self.next_page(request))

    def part(self, template: str, context: Context, *, every: float) -> Part:
        """A part that its page requests every `every` seconds, and that the site may prepare before."""
        return cast("SiteWithParts", self.admin_site).part(template, context, every=every)

    def page(
        self, request: HttpRequest, template: str, title: str, context: dict[str, Any], status: int = 200
    ) -> TemplateResponse:
        common = {**self.admin_site.each_context(request), "title": title, "opts": self.opts}
        return TemplateResponse(request, f"admin/tasks/task/{template}", {**common, **context}, status=status)


EVERY_SECONDS = 5


class WhyViews(TaskPages):
    """The part of `TaskAdmin` that explains a queue."""

    def why_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(require_safe(self.why_view))
        return [path("why/<path:queue_name>/", view, name="tasks_task_why")]

    def why_view(self, request: HttpRequest, queue_name: str) -> HttpResponse:
        """The page; htmx gets the part that refreshes itself, which other pages may include."""
        rights.require(request.user, VIEW)

        def context(_request: HttpRequest) -> dict[str, Any]:
            return {"why": why.explain(queue_name.replace("\0", ""))}

        part = self.part("admin/tasks/task/_why.html", context, every=EVERY_SECONDS)
        if "HX-Request" in request.headers:
            return part.answer(request)
        part.expect(request)
        return self.page(request, "why.html", _("Why not running?"), {**context(request), "every": EVERY_SECONDS})
