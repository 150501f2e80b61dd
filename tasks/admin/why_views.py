"""Explain why the tasks of a queue do not run."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from tasks import why
from tasks.admin import rights
from tasks.admin.task_pages import VIEW, TaskPages

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
            return {"why": why.look(queue_name.replace("\0", ""))}

        part = self.part("admin/tasks/task/_why.html", context, every=EVERY_SECONDS)
        if "HX-Request" in request.headers:
            return part.answer(request)
        part.expect(request)
        return self.page(request, "why.html", _("Why not running?"), {**context(request), "every": EVERY_SECONDS})
