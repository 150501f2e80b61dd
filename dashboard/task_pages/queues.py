"""The pages of queues: their numbers, pause and recovery, and why a queue's tasks do not run."""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Self

from django.contrib import messages
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from dashboard import links
from dashboard.attention import thresholds
from dashboard.attention.queues import is_late
from dashboard.layout import page
from dashboard.limits import KeyLimit
from dashboard.live import snapshots
from dashboard.live.fragment import SharedPart
from dashboard.numbers import decimal
from dashboard.task_pages import VIEW as VIEW_TASK
from dashboard.templatetags.rowlock import age
from tasks.admin import rights
from tasks.admin.forms import reason_of
from tasks.diagnosis import stats, why
from tasks.diagnosis.finding import command
from tasks.diagnosis.stats import TWELFTHS, Numbers, QueueNumbers
from tasks.models import Limit, Queue
from tasks.models.task import HAS_LIMIT
from tasks.operations.queues import SWITCHES, Switch
from tasks.support import audit, reading
from tasks.support.addresses import address
from tasks.support.durations import describe, rate_text, spoken

VIEW = "tasks.view_queue"
LIST = "admin:tasks_queue_changelist"
COUNT_CAP = 10_000
EVERY_SECONDS = 5  # both pages refresh themselves


@require_safe
def queues_view(request: HttpRequest) -> HttpResponse:
    """The page; for htmx only its table."""
    rights.require(request.user, VIEW)
    if "HX-Request" in request.headers:
        return LIVE.answer(request)
    context = {"panel": LIVE.text(request), "every": EVERY_SECONDS}
    return page(request, "task_pages/queues.html", _("Queues"), context)


def live_context(request: HttpRequest) -> dict[str, Any]:
    snapshot = snapshots.of(request)
    found, settings = snapshot.once(numbers), snapshot.once(configured)
    rows, late_seconds = [], thresholds.values(snapshot)["late_seconds"]
    for queue in found.queues:
        row, setting = QueueRow.of(queue, found, cap=COUNT_CAP, late_seconds=late_seconds), settings.get(queue.name)
        row = replace(row, limit_command=limit_command("configure_queue", queue.name, setting or Queue()))
        if setting is not None:
            since = age(setting.paused_at, snapshot.now)
            row = replace(row, limit=limit_of(setting), paused_by=setting.paused_by, paused_for=since)
        rows.append(row)
    return {"rows": rows, **forbidden(request.user)}


LIVE = SharedPart("task_pages/_queues.html", live_context, EVERY_SECONDS, is_apart=True)


def limit_command(verb: str, name: str, row: KeyLimit | Limit | Queue) -> str:
    """The command that sets the limit that this queue or key has now."""
    most = str(row.max_running or "none")
    return command(verb, name, "--max-running", most, "--rate", rate_text(row.rate, row.period_seconds))


def numbers() -> Numbers:
    return stats.collect(cap=COUNT_CAP)


def configured() -> dict[str, Queue]:
    """The settings of paused and of limited queues, by name."""
    return {queue.name: queue for queue in Queue.objects.filter(Q(paused=True) | HAS_LIMIT)}


def limit_of(queue: Queue) -> str:
    """Describe the queue's limit in words; empty if it has none."""
    at_once = _("%(number)s at once") % {"number": decimal(queue.max_running)} if queue.max_running else ""
    rate = rate_text(queue.rate, queue.period_seconds) if queue.rate else ""
    return ", ".join(filter(None, (at_once, rate)))


def forbidden(user: Any) -> dict[str, Any]:
    return rights.lacking(user, dict.fromkeys(switch.right for switch in SWITCHES.values()))


@require_POST
def switch_view(request: HttpRequest, name: str) -> HttpResponse:
    """Pause or resume a queue at once; change its recovery after a question."""
    switch = SWITCHES.get(name)
    if switch is None:
        raise Http404(_("There is no such action."))
    rights.require(request.user, switch.right)
    back = links.back_to(request, address(LIST))
    queue_name, is_asked = request.POST.get("queue", "").strip(), switch.asks and "confirmed" not in request.POST
    if not queue_name:
        messages.error(request, _("Name the queue."))
    elif is_asked:
        shell = switch.command(reading.name(queue_name))
        context = {"switch": switch, "queue": queue_name, "command": shell, "next": back}
        return page(request, "task_pages/switch.html", str(switch.label), context)
    elif switch.change(reading.name(queue_name), rights.who(request.user), reason=reason_of(request.POST)):
        queue = links.history(audit.queue(queue_name), queue_name)
        text = _("%(label)s: done for the queue %(queue)s.")
        messages.success(request, links.sentence(text, label=switch.label, queue=queue))
    else:
        messages.info(request, _("The queue %(queue)s was like that already.") % {"queue": queue_name})
    snapshots.forget()
    return HttpResponseRedirect(back)


@dataclass(frozen=True)
class QueueRow:
    """One line of a table of queues, in texts.

    `key` is the name of its element; `course`: what was done in each twelfth of the last hour; `switches`: those that
    would change something, with their commands, pause or resume first.
    """

    key: str
    name: str
    ready: str
    oldest: str
    scheduled: str
    processing: str
    stale: str
    failed: str
    completed: str
    course: tuple[int, ...]
    workers: str
    is_paused: bool
    is_late: bool
    is_held_back: bool
    is_stuck: bool
    is_unserved: bool
    has_work: bool
    asks: bool
    switches: tuple[tuple[Switch, str], ...]
    paused_by: str = ""
    paused_for: str | SafeString = ""
    limit: str = ""
    limit_command: str = ""
    objective: str = ""
    objective_command: str = ""

    @property
    def setting(self) -> str:
        """The whole text of the settings' cell, which may be cut there."""
        return " · ".join(filter(None, (self.paused_by, self.limit, self.objective)))

    @classmethod
    def of(cls, queue: QueueNumbers, found: Numbers, *, cap: int, late_seconds: float) -> Self:
        oldest, servers = queue.oldest_ready_seconds, len(found.servers(queue.name))
        objective = queue.objective_seconds
        written = describe(timedelta(seconds=objective)) if objective else "none"
        return cls(
            key=links.element_id(queue.name),
            name=queue.name,
            ready=capped(queue.ready, cap),
            oldest="\u2013" if oldest is None else spoken(oldest),
            scheduled=capped(queue.scheduled, cap),
            processing=capped(queue.processing, cap),
            stale=capped(queue.stale, cap),
            failed=capped(queue.failed, cap),
            completed=decimal(queue.completed_last_hour),
            course=tuple(found.completed.get(queue.name, [0] * TWELFTHS)),
            workers=str(servers),
            is_paused=queue.paused,
            is_late=is_late(queue, late_seconds),
            is_held_back=bool(queue.ready) and oldest is None,
            is_stuck=bool(queue.stale),
            is_unserved=is_unserved(queue, servers),
            has_work=bool(queue.ready or queue.processing),
            asks=queue.asks_a_person,
            switches=fitting_switches(queue),
            objective=spoken(objective) if objective else "",
            objective_command=command("configure_queue", queue.name, "--objective", written),
        )


def is_unserved(queue: QueueNumbers, servers: int) -> bool:
    return bool(queue.ready and not servers and not queue.paused)


def capped(number: int, cap: int) -> str:
    """A count, with a plus sign if it stopped at its cap."""
    return f"{decimal(number)}+" if number >= cap else decimal(number)


def fitting_switches(queue: QueueNumbers) -> tuple[tuple[Switch, str], ...]:
    """The two switches that would change something, with their commands; none if no command could name the queue."""
    if reading.name_problem(queue.name):
        return ()
    pause = SWITCHES["resume" if queue.paused else "pause"]
    recovery = SWITCHES["automatic" if queue.recovery == Queue.Recovery.ASK else "ask"]
    return tuple((switch, switch.command(queue.name)) for switch in (pause, recovery))


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
