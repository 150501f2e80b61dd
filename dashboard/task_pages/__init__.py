"""Pages of tasks and queues: the list, one task, people's actions on them, and the queues' settings."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext_lazy

from dashboard import links
from tasks.support.addresses import address

VIEW = "tasks.view_task"
LIST = "admin:tasks_task_changelist"
CHANGED_FORM = gettext_lazy("The form does not match this page: go back, reload the page and try again.")


def next_page(request: HttpRequest, usual: str = LIST) -> str:
    """The operators' page with the pressed button; `usual` if the form names no such page."""
    return links.back_to(request, address(usual))


def rejected(request: HttpRequest, reason: object) -> HttpResponse:
    """Redirect back with the reason why nothing was done."""
    messages.error(request, str(reason))
    return HttpResponseRedirect(next_page(request))
