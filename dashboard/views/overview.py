"""The first page, the counts in every page's navigation, and acknowledging a line of "Needs attention"."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeVar

from django.contrib import messages
from django.db import OperationalError, connection
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from dashboard import charts, links
from dashboard.attention import failures, inbox
from dashboard.attention.inbox import LASTS, is_too_slow
from dashboard.attention.queues import COUNT_CAP, LATE_SECONDS, numbers
from dashboard.charts import Span
from dashboard.failures import failed_groups, latest_failures
from dashboard.live import snapshots
from dashboard.live.fragment import SharedPart
from dashboard.locks import activity
from dashboard.site import page
from tasks.admin.forms import reason_of
from tasks.admin.rights import missing, require, who
from tasks.diagnosis import stats
from tasks.diagnosis.finding import command
from tasks.diagnosis.stats import Numbers, QueueNumbers
from tasks.operations.filters import BIGGEST_ID
from tasks.panels import LONGEST_KEY, AttentionLine, Snapshot
from tasks.support import reading
from tasks.support.database import fetch

ACKNOWLEDGE = "dashboard.acknowledge"
SEE_CHARTS, SEE_TASKS = "tasks.view_throughput", "tasks.view_task"
QUEUES_SHOWN = 100
FAILURES_SECONDS = 10.0  # the number in the navigation may be as old
BLOCKED = """
SELECT count(*) AS blocked FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND wait_event_type = 'Lock'
"""

T = TypeVar("T")


class Counts(NamedTuple):
    """Stale tasks, sessions that wait for a lock, and kinds of FAILED tasks that nobody has acknowledged."""

    stuck: int = 0
    blocked: int = 0
    failures: int = 0


def counts() -> Counts:
    return Counts(stats.stuck(cap=COUNT_CAP), fetch(connection, BLOCKED)[0]["blocked"])


def counts_for(request: HttpRequest) -> Counts:
    """Take the counts from data that this request already has, else query them; zero for what timed out."""
    snapshot = snapshots.of(request)
    if snapshot.knows(numbers) and snapshot.knows(activity.read):
        stale = sum(queue.stale for queue in snapshot.once(numbers).queues)
        return Counts(stale, len(snapshot.once(activity.read).blocked), failures_open(snapshot))
    if found := unless_slow(snapshot, counts):
        return found._replace(failures=failures_open(snapshot))
    seen = unless_slow(snapshot, activity.read)  # from catalogs, in case the tasks are locked
    return Counts(blocked=len(seen.blocked) if seen else 0)


def failures_open(snapshot: Snapshot) -> int:
    """Kinds of FAILED tasks that nobody has acknowledged; zero if the query timed out."""
    if not snapshot.knows(failed_groups):
        snapshot = snapshots.current("failures", FAILURES_SECONDS)
    try:
        return failures.count(snapshot)
    except OperationalError as error:
        if not is_too_slow(error):
            raise
        return 0


def unless_slow(snapshot: Snapshot, query: Callable[[], T]) -> T | None:
    """The result, or None if its query timed out: the page leaves that part out."""
    try:
        return snapshot.once(query)
    except OperationalError as error:
        if not is_too_slow(error):
            raise
        return None


@dataclass(frozen=True)
class QueueRow:
    """One line of the table of queues. `key` is the name of its element; `why_url` is empty if no task can wait."""

    numbers: QueueNumbers
    name: str
    key: str
    workers: int
    is_unserved: bool
    is_late: bool
    ready_url: str
    processing_url: str
    failed_url: str
    completed_url: str
    stale_url: str
    workers_url: str
    why_url: str

    @classmethod
    def of(cls, queue: QueueNumbers, workers: int) -> Self:
        names = (queue.name,)
        return cls(
            numbers=queue,
            name=queue.name,
            key=links.element_id(queue.name),
            workers=workers,
            is_unserved=is_unserved(queue, workers),
            is_late=(queue.oldest_ready_seconds or 0) > LATE_SECONDS and not queue.paused,
            ready_url=links.tasks(statuses=("READY",), queue_names=names),
            processing_url=links.tasks(statuses=("PROCESSING",), queue_names=names),
            failed_url=links.tasks(statuses=("FAILED",), queue_names=names),
            completed_url=links.tasks(statuses=("COMPLETED",), queue_names=names),
            stale_url=links.page("admin:ops_stale", queue=queue.name),
            workers_url=links.page("admin:ops_workers"),
            why_url=links.page("admin:tasks_task_why", queue.name) if queue.ready or queue.processing else "",
        )


def is_unserved(queue: QueueNumbers, workers: int) -> bool:
    return bool(queue.ready and not workers and not queue.paused)


def queue_context(found: Numbers) -> dict[str, Any]:
    """The table of queues. Some statements share one cap among all queues, so sums are compared with it."""
    queues = found.queues
    workers = {queue.name: len(found.servers(queue.name)) for queue in queues}

    def rank(queue: QueueNumbers) -> tuple[bool, bool, bool, str]:
        """Queues in trouble first, quiet ones last."""
        is_busy = bool(queue.ready or queue.processing or queue.scheduled)
        is_in_trouble = is_unserved(queue, workers[queue.name]) or bool(queue.stale)
        return not is_in_trouble, not queue.failed, not is_busy, queue.name

    shown = sorted(queues, key=rank)[:QUEUES_SHOWN]
    totals = (
        sum(queue.ready + queue.scheduled for queue in queues),
        sum(queue.processing for queue in queues),
        sum(queue.failed for queue in queues),
    )
    return {
        "queues": [QueueRow.of(queue, workers[queue.name]) for queue in shown],
        "hidden_queues": len(queues) - len(shown),
        "is_capped": max(totals) >= COUNT_CAP,
    }


def paths(view: Callable[..., Any]) -> list[URLPattern]:
    return [
        path("ops/attention/", view(acknowledge_form), name="ops_attention"),
        path("ops/attention/acknowledge/", view(acknowledge), name="ops_acknowledge"),
        path("ops/attention/withdraw/", view(withdraw), name="ops_withdraw"),
        path("ops/charts/", view(chart_panel), name="ops_charts"),
    ]


@require_safe
def overview(request: HttpRequest) -> HttpResponse:
    """The page; for htmx only its live fragment."""
    if request.headers.get("HX-Request"):
        return LIVE.answer(request)
    span = span_of(request)
    # A snapshot that is fresh enough for this span.
    drawn = chart_context(request, snapshots.current(f"throughput {span.key}", span.seconds))
    return page(request, "dashboard/overview.html", _("Overview"), {"panel": LIVE.text(request), **drawn})


def panel_context(request: HttpRequest) -> dict[str, Any]:
    """The live fragment's data, as this person may see it. A part is None if its query timed out."""
    snapshot, may = snapshots.of(request), request.user.has_perm
    found = unless_slow(snapshot, numbers) if may(SEE_TASKS) else None
    parts = {
        "now": snapshot.now,
        "inbox": inbox.gather(snapshot, may),
        "figures": inbox.figures(snapshot, may),
        "queues": None,
        "failures": unless_slow(snapshot, latest_failures) if may(SEE_TASKS) else None,
    }
    return {
        "page": parts if found is None else {**parts, **queue_context(found)},
        "cannot_acknowledge": missing(request.user, ACKNOWLEDGE),
        "cannot_see": missing(request.user, SEE_TASKS),
    }


LIVE = SharedPart("dashboard/_overview.html", panel_context, every=2)


@require_safe
def chart_panel(request: HttpRequest) -> HttpResponse:
    """The charts alone, which refresh more slowly."""
    require(request.user, SEE_CHARTS)
    seconds = span_of(request).seconds
    return SharedPart("dashboard/_charts.html", chart_context, every=10, is_apart=True, seconds=seconds).answer(request)


def span_of(request: HttpRequest) -> Span:
    """The span in the URL, by default the last hour."""
    return charts.SPANS.get(request.GET.get("span", ""), charts.SPANS["1h"])


def chart_context(request: HttpRequest, snapshot: Snapshot | None = None) -> dict[str, Any]:
    """The charts of this snapshot, by default of the request's own."""
    span = span_of(request)
    if not request.user.has_perm(SEE_CHARTS):
        return {"span": None}
    context = {"span": span, "spans": charts.SPANS.values()}
    slots = unless_slow(snapshot or snapshots.of(request), charts.query_of(span.key))
    if slots is None:
        return context
    return {
        **context,
        "rows": charts.slot_rows(slots, span),
        "axis": charts.axis(slots, span),
        "throughput": charts.throughput_chart(slots, span),
        "latency": charts.latencies(slots, span),
    }


@require_safe
def acknowledge_form(request: HttpRequest) -> HttpResponse:
    line = line_of(request, request.GET.get("line", ""))
    return form_page(request, line, status=200 if line else 404)


@require_POST
def acknowledge(request: HttpRequest) -> HttpResponse:
    """Fold the line away, for a time or until it grows beyond the seen size."""
    require(request.user, ACKNOWLEDGE)
    post = request.POST
    name, choice, size = post.get("line", ""), LASTS.get(post.get("lasts", "")), reading.digits(post.get("size", ""))
    if reading.name_problem(name, LONGEST_KEY) or choice is None or size is None or size > BIGGEST_ID:
        return form_page(request, None, status=400)
    reason, line = reason_of(post), line_of(request, name)
    if line is None:
        messages.info(request, _("That line is gone: there is nothing to acknowledge."))
        return redirect("admin:index")
    if not reason:
        fault = _("Acknowledging needs a reason, which the next shift reads.")
        return form_page(request, line, fault=fault, status=400)
    covered = size if choice.is_until_it_grows else None
    inbox.acknowledge(line, who(request.user), reason=reason, lasts=choice.lasts, size=covered)
    snapshots.forget()
    messages.success(request, _("Acknowledged: the line is folded below the list."))
    return redirect("admin:index")


@require_POST
def withdraw(request: HttpRequest) -> HttpResponse:
    require(request.user, ACKNOWLEDGE)
    name = request.POST.get("line", "")
    if reading.name_problem(name, LONGEST_KEY):
        return form_page(request, None, status=400)
    inbox.withdraw(name, who(request.user))
    snapshots.forget()
    messages.success(request, _("The line is in the list again while its trouble lasts."))
    return redirect("admin:index")


def line_of(request: HttpRequest, name: str) -> AttentionLine | None:
    """The line of this name, if this person may see it."""
    return inbox.gather(snapshots.of(request), request.user.has_perm).find(name)


def form_page(request: HttpRequest, line: AttentionLine | None, *, fault: str = "", status: int = 200) -> HttpResponse:
    context = {
        "line": line,
        "now": snapshots.of(request).now,
        "fault": fault,
        "choices": LASTS.values(),
        "cannot_acknowledge": missing(request.user, ACKNOWLEDGE),
        "command": command("acknowledge", line.name, "--until-it-grows", "--reason", "…") if line else "",
    }
    return page(request, "dashboard/acknowledge.html", _("Acknowledge"), context, status=status)
