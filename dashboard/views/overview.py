"""The first page, its charts, and acknowledging a line of "Needs attention"."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from dashboard.attention import inbox
from dashboard.attention.inbox import LASTS
from dashboard.live import snapshot
from dashboard.live.fragment import SharedPart
from dashboard.overview import charts, page
from dashboard.overview.charts import Span
from tasks.admin.rights import missing, require, who
from tasks.diagnosis.finding import command
from tasks.operations.filters import BIGGEST_ID
from tasks.panels import Line, Look
from tasks.support import reading

ACKNOWLEDGE = "dashboard.acknowledge"
SEE_CHARTS = "tasks.view_throughput"
LONGEST_NAME = 300


@dataclass(frozen=True)
class Asked:
    """A person's request for one line, and the line's size when seen."""

    name: str
    reason: str
    lasts: str
    size: int

    @classmethod
    def from_post(cls, request: HttpRequest) -> "Asked | None":
        """Read the form; None if it is not one of our forms."""
        post = request.POST
        name, size, lasts = post.get("line", ""), reading.digits(post.get("size", "")), post.get("lasts", "")
        if reading.name_problem(name, LONGEST_NAME) or size is None or size > BIGGEST_ID or lasts not in LASTS:
            return None
        return cls(name, reading.reason(post.get("reason", "")), lasts, size)


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
    drawn = chart_context(request, look_of(span_of(request)))
    context = {"title": _("Overview"), "panel": LIVE.text(request), **drawn}
    return TemplateResponse(request, "dashboard/overview.html", {**admin.site.each_context(request), **context})


def panel_context(request: HttpRequest) -> dict[str, Any]:
    """The live fragment's data, as this person may see it."""
    return {
        "page": page.gather(snapshot.of(request), request.user),
        "cannot_acknowledge": missing(request.user, ACKNOWLEDGE),
        "cannot_see": missing(request.user, page.SEE_TASKS),
    }


LIVE = SharedPart("dashboard/_overview.html", panel_context, every=2)


@require_safe
def chart_panel(request: HttpRequest) -> HttpResponse:
    """The charts alone, which refresh more slowly."""
    require(request.user, SEE_CHARTS)
    seconds = span_of(request).seconds
    return SharedPart("dashboard/_charts.html", live_charts, every=10, is_apart=True, seconds=seconds).answer(request)


def live_charts(request: HttpRequest) -> dict[str, Any]:
    return chart_context(request, snapshot.of(request))


def span_of(request: HttpRequest) -> Span:
    """The span in the URL, by default the last hour."""
    return charts.SPANS.get(request.GET.get("span", ""), charts.SPANS["1h"])


def look_of(span: Span) -> Look:
    """A snapshot that is fresh enough for this span."""
    return snapshot.current(f"throughput {span.key}", span.seconds)


def chart_context(request: HttpRequest, look: Look) -> dict[str, Any]:
    span = span_of(request)
    if not request.user.has_perm(SEE_CHARTS):
        return {"span": None}
    slots = page.told(look, charts.asking(span.key))
    if slots is None:
        return {"span": span, "spans": charts.SPANS.values()}
    return {
        "span": span,
        "spans": charts.SPANS.values(),
        "rows": charts.slot_rows(slots, span),
        "axis": charts.axis(slots, span),
        "throughput": charts.throughput_chart(slots, span),
        "latency": charts.latencies(slots, span),
    }


@require_safe
def acknowledge_form(request: HttpRequest) -> HttpResponse:
    """The line, and the form that acknowledges it."""
    line = inbox.gather(snapshot.of(request), request.user.has_perm).find(request.GET.get("line", ""))
    return answer(request, line, status=200 if line else 404)


@require_POST
def acknowledge(request: HttpRequest) -> HttpResponse:
    """Fold the line away, for a time or until it grows beyond the seen size."""
    require(request.user, ACKNOWLEDGE)
    asked = Asked.from_post(request)
    if asked is None:
        return answer(request, None, status=400)
    line = inbox.gather(snapshot.of(request), request.user.has_perm).find(asked.name)
    if line is None:
        messages.info(request, _("That line is over: there is nothing to acknowledge."))
        return redirect("admin:index")
    if not asked.reason:
        return answer(request, line, fault=_("Acknowledging needs a reason, which the next shift reads."), status=400)
    choice = LASTS[asked.lasts]
    size = asked.size if choice.is_until_it_grows else None
    inbox.acknowledge(line, who(request.user), reason=asked.reason, lasts=choice.lasts, size=size)
    snapshot.forget()
    messages.success(request, _("Acknowledged: it stands folded below the list."))
    return redirect("admin:index")


@require_POST
def withdraw(request: HttpRequest) -> HttpResponse:
    """Unfold the line."""
    require(request.user, ACKNOWLEDGE)
    name = request.POST.get("line", "")
    if reading.name_problem(name, LONGEST_NAME):
        return answer(request, None, status=400)
    inbox.withdraw(name, who(request.user))
    snapshot.forget()
    messages.success(request, _("The line stands in the list again while its trouble lasts."))
    return redirect("admin:index")


def answer(request: HttpRequest, line: Line | None, *, fault: str = "", status: int = 200) -> HttpResponse:
    context = {
        "title": _("Acknowledge"),
        "line": line,
        "now": snapshot.of(request).now,
        "fault": fault,
        "choices": LASTS.values(),
        "cannot_acknowledge": missing(request.user, ACKNOWLEDGE),
        "command": command("acknowledge", line.name, "--until-it-grows", "--reason", "…") if line else "",
    }
    return render(request, "dashboard/acknowledge.html", {**admin.site.each_context(request), **context}, status=status)
