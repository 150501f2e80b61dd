"""The first page, the counts in every page's navigation, and acknowledging a line of "Needs attention"."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple, Self, TypeVar

from django.contrib import messages
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from dashboard import charts, series
from dashboard.attention import failures, inbox, thresholds
from dashboard.attention.inbox import LASTS, is_too_slow
from dashboard.attention.queues import COUNT_CAP, in_trouble, numbers
from dashboard.failures import failed_groups, latest_failures
from dashboard.layout import page
from dashboard.live import snapshots
from dashboard.live.fragment import SharedPart
from dashboard.locks import activity
from dashboard.series import Span
from dashboard.task_pages.queues import QueueRow, forbidden, is_unserved
from dashboard.templatetags.rowlock import age
from dashboard.views.lock_history import parsed
from tasks.admin.forms import reason_of
from tasks.admin.rights import missing, require, who
from tasks.diagnosis.finding import command
from tasks.diagnosis.stats import Numbers, QueueNumbers
from tasks.operations.filters import BIGGEST_ID
from tasks.panels import LONGEST_KEY, AttentionLine, Snapshot
from tasks.support import reading
from tasks.support.addresses import address

ACKNOWLEDGE, CONFIGURE_ALERTS = "dashboard.acknowledge", "dashboard.configure_alerts"
SEE_CHARTS, SEE_TASKS = "tasks.view_throughput", "tasks.view_task"
QUEUES_SHOWN = 100
FAILURES_SECONDS = 10.0  # the number in the navigation may be as old
T = TypeVar("T")


class Counts(NamedTuple):
    """Stale tasks, sessions that wait for a lock, and kinds of FAILED tasks that nobody has acknowledged."""

    stuck: int = 0
    blocked: int = 0
    failures: int = 0


def counts_for(request: HttpRequest) -> Counts:
    """Take the counts from data that this request already has, else query them; zero for what timed out."""
    snapshot = snapshots.of(request)
    if snapshot.knows(numbers) and snapshot.knows(activity.read):
        stale = sum(queue.stale for queue in snapshot.once(numbers).queues)
        return Counts(stale, len(snapshot.once(activity.read).blocked), failures_open(snapshot))
    if found := unless_slow(snapshot, in_trouble):
        return Counts(found.stuck, found.blocked, failures_open(snapshot))
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


def queue_context(found: Numbers, late_seconds: float) -> dict[str, Any]:
    """The table of queues. Some statements share one cap among all queues, so sums are compared with it."""
    queues = found.queues

    def rank(queue: QueueNumbers) -> tuple[bool, bool, bool, str]:
        """Queues in trouble first, quiet ones last."""
        is_busy = bool(queue.ready or queue.processing or queue.scheduled)
        is_in_trouble = is_unserved(queue, len(found.servers(queue.name))) or bool(queue.stale)
        return not is_in_trouble, not queue.failed, not is_busy, queue.name

    shown = sorted(queues, key=rank)[:QUEUES_SHOWN]
    totals = (
        sum(queue.ready + queue.scheduled for queue in queues),
        sum(queue.processing for queue in queues),
        sum(queue.failed for queue in queues),
    )
    return {
        "queues": [QueueRow.of(queue, found, cap=COUNT_CAP, late_seconds=late_seconds) for queue in shown],
        "hidden_queues": len(queues) - len(shown),
        "is_capped": max(totals) >= COUNT_CAP,
    }


class LineRow(NamedTuple):
    """One line that needs attention, as its row shows it. `is_forbidden`: this person may not press its button."""

    line: AttentionLine
    age: str
    is_forbidden: bool
    may_acknowledge: bool

    @classmethod
    def of(cls, line: AttentionLine, now: datetime, may: inbox.May) -> Self:
        return cls(
            line,
            age(line.since, now),
            is_forbidden=line.act is not None and not may(line.act.permission),
            may_acknowledge=line.key != inbox.UNTOLD and may(ACKNOWLEDGE),
        )


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
    span, _problem = span_of(request)
    # A snapshot that is fresh enough for this span.
    drawn = chart_context(request, snapshots.current(f"throughput {span.query}", span.seconds))
    return page(request, "dashboard/overview.html", _("Overview"), {"panel": LIVE.text(request), **drawn})


def panel_context(request: HttpRequest) -> dict[str, Any]:
    """The live fragment's data, as this person may see it. A part is None if its query timed out."""
    snapshot, may = snapshots.of(request), request.user.has_perm
    found = unless_slow(snapshot, numbers) if may(SEE_TASKS) else None
    lines = inbox.gather(snapshot, may)
    rows = [LineRow.of(line, snapshot.now, may) for line in lines.lines]
    parts = {
        "inbox": lines,
        "critical": [row for row in rows if row.line.is_critical],
        "warnings": [row for row in rows if not row.line.is_critical],
        "figures": inbox.figures(snapshot, may),
        "queues": None,
    }
    late_seconds = thresholds.values(snapshot)["late_seconds"]
    acts = {line.act.permission for line in lines.lines if line.act}
    return {
        "page": parts if found is None else {**parts, **queue_context(found, late_seconds)},
        "cannot_acknowledge": missing(request.user, ACKNOWLEDGE),
        "may_configure": may(CONFIGURE_ALERTS),
        "cannot_see": missing(request.user, SEE_TASKS),
        "forbidden_acts": {right: missing(request.user, right) for right in sorted(acts) if not may(right)},
        **forbidden(request.user),
    }


LIVE = SharedPart("dashboard/_overview.html", panel_context, every=2)


@require_safe
def chart_panel(request: HttpRequest) -> HttpResponse:
    """The charts alone, which refresh more slowly."""
    require(request.user, SEE_CHARTS)
    seconds = span_of(request)[0].seconds
    return SharedPart("dashboard/_charts.html", chart_context, every=10, is_apart=True, seconds=seconds).answer(request)


def span_of(request: HttpRequest) -> tuple[Span, str]:
    """The span in the URL, by default the last hour; and the reason why a chosen time cannot be shown."""
    usual, written = series.SPANS["1h"], [request.GET.get(name, "").strip() for name in ("from", "to")]
    if not any(written):
        return series.SPANS.get(request.GET.get("span", ""), usual), ""
    now = snapshots.of(request).now
    since, until = parsed(written[0]), parsed(written[1]) if written[1] else now
    if since is None or until is None:
        return usual, _("Write both times like 2026-11-21 03:10; this is the last hour.")
    try:
        return series.chosen(since, until, now), ""
    except ValueError as problem:
        return usual, str(problem)


def chart_context(request: HttpRequest, snapshot: Snapshot | None = None) -> dict[str, Any]:
    """The charts of this snapshot, by default of the request's own."""
    span, problem = span_of(request)
    if not request.user.has_perm(SEE_CHARTS):
        return {"span": None}
    snapshot = snapshot or snapshots.of(request)
    latest = unless_slow(snapshot, latest_failures) if request.user.has_perm(SEE_TASKS) else None
    seen = unless_slow(snapshot, series.query_of(span))
    context = {
        "span": span,
        "spans": series.SPANS.values(),
        "problem": problem,
        "failures": latest,
        "now": snapshot.now,
    }
    if seen is None:
        return context
    return {
        **context,
        "seen": seen,
        "sample": series.SAMPLE,
        "rows": charts.slot_rows(seen.slots, span),
        "axis": charts.axis(seen.slots, span),
        "throughput": charts.throughput_chart(seen.slots, span),
        "latency": charts.latencies(seen.slots, span),
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
        return redirect(address("admin:index"))
    if not reason:
        fault = _("Acknowledging needs a reason, which the next shift reads.")
        return form_page(request, line, fault=fault, status=400)
    covered = size if choice.is_until_it_grows else None
    inbox.acknowledge(line, who(request.user), reason=reason, lasts=choice.lasts, size=covered)
    snapshots.forget()
    messages.success(request, _("Acknowledged: the line is folded below the list."))
    return redirect(address("admin:index"))


@require_POST
def withdraw(request: HttpRequest) -> HttpResponse:
    require(request.user, ACKNOWLEDGE)
    name = request.POST.get("line", "")
    if reading.name_problem(name, LONGEST_KEY):
        return form_page(request, None, status=400)
    inbox.withdraw(name, who(request.user))
    snapshots.forget()
    messages.success(request, _("The line is in the list again while its trouble lasts."))
    return redirect(address("admin:index"))


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
