"""Pages of tasks and queues: the list, one task, people's actions on them, and the queues' settings."""

from typing import Any

from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme

VIEW = "tasks.view_task"
LIST = "admin:tasks_task_changelist"


def page(
    request: HttpRequest, template: str, title: str, context: dict[str, Any], status: int = 200
) -> TemplateResponse:
    """One of `templates/task_pages` in the site's layout."""
    common = {**admin.site.each_context(request), "title": title}
    return TemplateResponse(request, f"task_pages/{template}", {**common, **context}, status=status)


def next_page(request: HttpRequest) -> str:
    """The operators' page with the pressed button, including its filter; the list if the form names no such page."""
    wanted, operators_pages = request.POST.get("next", ""), reverse("admin:index") + "ops/"
    is_ours = wanted.startswith((reverse(LIST), operators_pages))
    if is_ours and url_has_allowed_host_and_scheme(wanted, allowed_hosts=None):
        return wanted
    return reverse(LIST)


def rejected(request: HttpRequest, reason: str) -> HttpResponse:
    """Redirect back with the reason why nothing was done."""
    messages.error(request, reason)
    return HttpResponseRedirect(next_page(request))
