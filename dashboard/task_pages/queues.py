"""The pages of queues: their numbers, pause and recovery, and why a queue's tasks do not run."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from dashboard import links
from dashboard.live.fragment import SharedPart
from dashboard.site import page
from dashboard.task_pages import VIEW as VIEW_TASK
from tasks.admin import rights
from tasks.admin.forms import reason_of
from tasks.diagnosis import stats, why
from tasks.diagnosis.stats import QueueNumbers
from tasks.models import Queue
from tasks.operations.queues import SWITCHES, Switch
from tasks.support import reading

VIEW = "tasks.view_queue"
LIST = "admin:tasks_queue_changelist"
COUNT_CAP = 10_000
EVERY_SECONDS = 5  # the reasons refresh themselves


def queues_view(request: HttpRequest) -> HttpResponse:
    rights.require(request.user, VIEW)
    sentences = {switch.right: rights.missing(request.user, switch.right) for switch in SWITCHES.values()}
    context = {"rows": rows(), "missing_rights": {right: text for right, text in sentences.items() if text}}
    return page(request, "task_pages/queues.html", _("Queues"), context)


@require_POST
def switch_view(request: HttpRequest, name: str) -> HttpResponse:
    switch = SWITCHES.get(name)
    if switch is None:
        raise Http404(_("There is no such action."))
    rights.require(request.user, switch.right)
    queue_name = request.POST.get("queue", "").strip()
    if not queue_name:
        messages.error(request, _("Name the queue."))
    elif switch.change(reading.name(queue_name), rights.who(request.user), reason=reason_of(request.POST)):
        values = {"label": switch.label, "queue": queue_name}
        messages.success(request, _("%(label)s: done for the queue %(queue)s.") % values)
    else:
        messages.info(request, _("The queue %(queue)s was like that already.") % {"queue": queue_name})
    return HttpResponseRedirect(reverse(LIST))


@dataclass(frozen=True)
class QueueRow:
    """One queue, as the template shows it: its numbers, its setting, and its buttons with their commands."""

    name: str
    tasks_url: str
    why_url: str
    ready: str
    oldest_ready_seconds: float | None
    is_held_by_key: bool
    scheduled: str
    processing: str
    stale: str
    is_stuck: bool
    failed: str
    completed_last_hour: str
    is_paused: bool
    paused_by: str
    paused_at: datetime | None
    asks: bool
    switches: list[tuple[Switch, str]]

    @classmethod
    def of(cls, queue: QueueNumbers, setting: Queue | None) -> Self:
        return cls(
            name=queue.name,
            tasks_url=links.tasks(queue_names=(queue.name,)),
            why_url=links.page("admin:tasks_task_why", queue.name),
            ready=capped(queue.ready),
            oldest_ready_seconds=queue.oldest_ready_seconds,
            is_held_by_key=bool(queue.ready) and queue.oldest_ready_seconds is None,
            scheduled=capped(queue.scheduled),
            processing=capped(queue.processing),
            stale=str(queue.stale),
            is_stuck=bool(queue.stale),
            failed=capped(queue.failed),
            completed_last_hour=str(queue.completed_last_hour),
            is_paused=queue.paused,
            paused_by=setting.paused_by or "" if setting else "",
            paused_at=setting.paused_at if setting else None,
            asks=queue.asks_a_person,
            switches=fitting_switches(queue),
        )


def rows() -> list[QueueRow]:
    queues = stats.collect(cap=COUNT_CAP).queues
    settings = Queue.objects.in_bulk([queue.name for queue in queues])
    return [QueueRow.of(queue, settings.get(queue.name)) for queue in queues]


def capped(number: int) -> str:
    """A count, with a plus sign if it stopped at its cap."""
    return f"{number}+" if number >= COUNT_CAP else str(number)


def fitting_switches(queue: QueueNumbers) -> list[tuple[Switch, str]]:
    """The two switches that would change something, with their commands; none if no command could name the queue."""
    if reading.name_problem(queue.name):
        return []
    pause = SWITCHES["resume" if queue.paused else "pause"]
    recovery = SWITCHES["automatic" if queue.recovery == Queue.Recovery.ASK else "ask"]
    return [(switch, switch.command(queue.name)) for switch in (pause, recovery)]


@require_safe
def why_view(request: HttpRequest, queue_name: str) -> HttpResponse:
    """The reasons why the tasks of a queue do not run; htmx gets the part that refreshes itself."""
    rights.require(request.user, VIEW_TASK)

    def context(_request: HttpRequest) -> dict[str, Any]:
        return {"why": why.explain(queue_name.replace("\0", ""))}

    part = SharedPart("task_pages/_why.html", context, EVERY_SECONDS, is_apart=True)
    if "HX-Request" in request.headers:
        return part.answer(request)
    part.expect(request)
    return page(request, "task_pages/why.html", _("Why not running?"), {**context(request), "every": EVERY_SECONDS})
