"""The common base of the tasks' pages: layout, return address and refusals."""

from collections.abc import Callable
from typing import Any, Protocol, cast

from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme

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
