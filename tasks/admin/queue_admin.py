"""The queues: their numbers, pause and recovery."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.contrib import admin, messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST

from tasks import operations
from tasks.admin import rights
from tasks.admin.submission import reason_of
from tasks.diagnosis import stats
from tasks.diagnosis.finding import command
from tasks.diagnosis.stats import QueueNumbers
from tasks.models import Queue
from tasks.support import reading
from tasks.support.audit import Who

VIEW = "tasks.view_queue"
LIST = "admin:tasks_queue_changelist"
COUNT_CAP = 10_000


@dataclass(frozen=True)
class Switch:
    """A button of one queue: its texts, its right, its effect, and the equivalent command."""

    name: str
    label: str | Promise
    right: str
    change: Callable[[str, Who, str], bool]
    words: tuple[str, ...]

    def command(self, queue_name: str) -> str:
        return command(self.words[0], queue_name, *self.words[1:])


def recovering(recovery: Queue.Recovery) -> Callable[[str, Who, str], bool]:
    """A function that sets a queue to this kind of recovery."""
    return lambda name, who, reason: operations.configure_queue(name, who, recovery=recovery, reason=reason)


SWITCHES = {
    switch.name: switch
    for switch in (
        Switch(
            "pause",
            gettext_lazy("Pause"),
            "tasks.pause_queue",
            lambda name, who, reason: operations.pause(name, who, reason=reason),
            ("pause_queue",),
        ),
        Switch(
            "resume",
            gettext_lazy("Resume"),
            "tasks.pause_queue",
            lambda name, who, reason: operations.resume(name, who, reason=reason),
            ("resume_queue",),
        ),
        Switch(
            "automatic",
            gettext_lazy("Recover by itself"),
            "tasks.configure_queue",
            recovering(Queue.Recovery.AUTOMATIC),
            ("configure_queue", "--recovery", "automatic"),
        ),
        Switch(
            "ask",
            gettext_lazy("Ask a person"),
            "tasks.configure_queue",
            recovering(Queue.Recovery.ASK),
            ("configure_queue", "--recovery", "ask"),
        ),
    )
}


@admin.register(Queue)
class QueueAdmin(admin.ModelAdmin):
    """Every queue with a task, a setting or a worker, also without a row."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("", view(self.changelist_view), name="tasks_queue_changelist"),
            path("do/<slug:name>/", view(self.switch_view), name="tasks_queue_switch"),
        ]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Queue | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Queue | None = None) -> bool:
        return False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        rights.require(request.user, VIEW)
        context = {
            **self.admin_site.each_context(request),
            "title": _("Queues"),
            "opts": self.opts,
            "rows": rows(),
            "cap": COUNT_CAP,
            "missing_rights": sorted(
                {rights.missing(request.user, switch.right) for switch in SWITCHES.values()} - {""}
            ),
        }
        return TemplateResponse(request, "admin/tasks/queue/change_list.html", context)

    def switch_view(self, request: HttpRequest, name: str) -> HttpResponse:
        switch = SWITCHES.get(name)
        if switch is None:
            raise Http404(_("There is no such action."))
        return require_POST(self._switch)(request, switch)

    def _switch(self, request: HttpRequest, switch: Switch) -> HttpResponse:
        rights.require(request.user, switch.right)
        queue_name = request.POST.get("queue", "").strip()
        if not queue_name:
            messages.error(request, _("Name the queue."))
        elif switch.change(reading.name(queue_name), rights.who(request.user), reason_of(request.POST)):
            told = {"label": switch.label, "queue": queue_name}
            messages.success(request, _("%(label)s: done for the queue %(queue)s.") % told)
        else:
            messages.info(request, _("The queue %(queue)s was like that already.") % {"queue": queue_name})
        return HttpResponseRedirect(reverse(LIST))


@dataclass(frozen=True)
class Row:
    """One queue: its numbers, its setting, and its buttons."""

    numbers: QueueNumbers
    setting: Queue | None
    switches: list[tuple[Switch, str]]


def rows() -> list[Row]:
    queues = stats.collect(cap=COUNT_CAP).queues
    settings = Queue.objects.in_bulk([queue.name for queue in queues])
    return [Row(queue, settings.get(queue.name), fitting_switches(queue)) for queue in queues]


def fitting_switches(queue: QueueNumbers) -> list[tuple[Switch, str]]:
    """The two switches that would change something, with their commands; none if no command could name the queue."""
    if reading.name_problem(queue.name):
        return []
    pause = SWITCHES["resume" if queue.paused else "pause"]
    recovery = SWITCHES["automatic" if queue.recovery == Queue.Recovery.ASK else "ask"]
    return [(switch, switch.command(queue.name)) for switch in (pause, recovery)]
