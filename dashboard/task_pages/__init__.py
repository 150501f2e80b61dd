"""Pages of tasks and queues: the list, one task, people's actions on them, and the queues' settings."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext_lazy

VIEW = "tasks.view_task"
LIST = "admin:tasks_task_changelist"
CHANGED_FORM = gettext_lazy("The form does not match this page: go back, reload the page and try again.")


def next_page(request: HttpRequest, default: str = LIST) -> str:
    """The operators' page with the pressed button, including its filter; `default` if the form names no such page."""
    wanted, operators_pages = request.POST.get("next", ""), reverse("admin:index") + "ops/"
    is_ours = wanted.startswith((reverse(LIST), operators_pages))
    if is_ours and url_has_allowed_host_and_scheme(wanted, allowed_hosts=None):
        return wanted
    return reverse(default)


def rejected(request: HttpRequest, reason: object) -> HttpResponse:
    """Redirect back with the reason why nothing was done."""
    messages.error(request, str(reason))
    return HttpResponseRedirect(next_page(request))
