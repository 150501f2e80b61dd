"""The lab's pages: start runs, watch them, and compare their results."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect
from django.template.loader import render_to_string
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from dashboard.lab import charts, drill, measure, pages, requests, runner
from dashboard.lab.measure import Span
from dashboard.lab.pages import Comparison, command_of, comparison_of
from dashboard.lab.patterns import PATTERNS
from dashboard.lab.requests import PRESETS, PRESETS_BY_NAME, LabForm
from dashboard.lab.worker import Plan
from dashboard.layout import page
from dashboard.live import snapshots
from dashboard.models import LabRun
from tasks.admin.rights import missing, require, who
from tasks.diagnosis.finding import command
from tasks.operations.filters import BIGGEST_ID
from tasks.operations.tokens import is_token, new_token
from tasks.support import reading
from tasks.support.addresses import address

SEE, RUN = "dashboard.view_labrun", "dashboard.run_pattern"
SHOWN_RUNS = 30
MOST_COMPARED = 40
FORMATS = {"md": "text/markdown", "svg": "image/svg+xml", "json": "application/json", "csv": "text/csv"}
POLLING_IS_OVER = 286  # tells htmx to stop polling
LARGE = ("statements",)


def paths(view: Callable[..., Any]) -> list[URLPattern]:
    return [
        path("ops/lab/", view(lab), name="ops_lab"),
        path("ops/lab/start/", view(start), name="ops_lab_start"),
        path("ops/lab/drill/", view(start_drill), name="ops_lab_drill"),
        path("ops/lab/compare/", view(compare), name="ops_lab_compare"),
        path("ops/lab/patterns/", view(patterns), name="ops_lab_patterns"),
        path("ops/lab/<int:run_id>/", view(run), name="ops_lab_run"),
        path("ops/lab/<int:run_id>/stop/", view(stop), name="ops_lab_stop"),
    ]


@require_safe
def lab(request: HttpRequest) -> HttpResponse:
    """The form, filled from a named preset if there is one, and the latest runs."""
    require(request.user, SEE)
    preset = PRESETS_BY_NAME.get(request.GET.get("preset", ""))
    initial = {"patterns": preset.patterns, **preset.numbers} if preset else {"patterns": ["unsafe", "double_checked"]}
    form = LabForm(initial=initial)
    return page(request, "dashboard/lab.html", _("Lab"), lab_context(request, form) | {"preset": preset})


def lab_context(request: HttpRequest, form: LabForm) -> dict[str, Any]:
    runs = list(LabRun.objects.defer(*LARGE).order_by("-pk")[:SHOWN_RUNS])
    return {
        "form": form,
        "token": new_token(),
        "drill_token": new_token(),
        "drill_command": command("kill_drill"),
        "presets": PRESETS,
        "board": comparison_of(runs),
        "is_allowed": runner.is_allowed(),
        "cannot_run": missing(request.user, RUN),
        "commands": [] if form.is_bound else commands_of(form.initial),
    }


def commands_of(initial: Mapping[str, Any]) -> list[str]:
    """The command for each run that the unchanged form would start."""
    sweep = []
    if name := initial.get("vary"):
        sweep = [f"--sweep={name.replace('_', '-')}={initial['values'].replace(' ', '')}"]
    return [command_of(pattern, initial, *sweep) for pattern in initial.get("patterns") or [""]]


@require_POST
def start(request: HttpRequest) -> HttpResponse:
    """Start the requested runs, once for each form shown."""
    form = LabForm(request.POST)
    return started(request, form, form.plans() if form.is_valid() else [])


@require_POST
def start_drill(request: HttpRequest) -> HttpResponse:
    """Start a kill drill, once for each page shown."""
    return started(request, LabForm(), [Plan(drill.NAME, workers=2, items=1, kill=1)])


def started(request: HttpRequest, form: LabForm, plans: Sequence[Plan]) -> HttpResponse:
    """Request the runs and redirect to the run, or to the comparison if there are several; without plans the page."""
    require(request.user, SEE)
    require(request.user, RUN)
    if not runner.is_allowed():
        raise PermissionDenied(_("The lab is off on a database of your own: set ROWLOCK_LAB=1 to allow it."))
    token = request.POST.get("token", "")
    if not plans or not is_token(token):
        return page(request, "dashboard/lab.html", _("Lab"), lab_context(request, form), status=400)
    runs = LabRun.objects.filter(batch=requests.request_runs(plans, token, who(request.user)))
    if len(plans) == 1:
        return redirect(address("admin:ops_lab_run", runs.get().pk))
    return redirect(f"{address('admin:ops_lab_compare')}?{urlencode({'batch': token})}")


@require_safe
def compare(request: HttpRequest) -> HttpResponse:
    """Compare runs, by `?batch=` or by `?run=1&run=2`; `format` (one of FORMATS) exports them."""
    require(request.user, SEE)
    runs = named_runs(request)
    board = comparison_of(runs)
    if request.GET.get("format") in FORMATS:
        return exported(board, request.GET["format"])
    query = request.GET.copy()
    query.pop("format", None)
    context = {"title": _("Comparison"), "board": board, "query": query.urlencode()}
    return live_page(request, "dashboard/lab_compare.html", "dashboard/_lab_board.html", context, runs)


def named_runs(request: HttpRequest) -> list[LabRun]:
    """The runs that the URL names, in the order of their request."""
    runs = LabRun.objects.defer(*LARGE).order_by("pk")
    if batch := request.GET.get("batch", "").replace("\0", ""):
        return list(runs.filter(batch=batch)[:MOST_COMPARED])
    ids = [reading.digits(text) for text in request.GET.getlist("run")[:MOST_COMPARED]]
    return list(runs.filter(pk__in=[run_id for run_id in ids if run_id is not None and run_id <= BIGGEST_ID]))


def exported(board: Comparison, kind: str) -> HttpResponse:
    if kind == "json":
        return JsonResponse(pages.as_json(board), json_dumps_params={"indent": 2})
    if kind == "svg":
        text: str = render_to_string("dashboard/lab_chart.svg", {"board": board})
    else:
        text = pages.as_csv(board) if kind == "csv" else pages.as_markdown(board)
    headers = {"Content-Disposition": f'attachment; filename="lab.{kind}"'}
    return HttpResponse(text, content_type=f"{FORMATS[kind]}; charset=utf-8", headers=headers)


@require_safe
def run(request: HttpRequest, run_id: int) -> HttpResponse:
    """One run: its progress, then its numbers, chart and statements."""
    require(request.user, SEE)
    found = get_object_or_404(LabRun, pk=run_id)
    line = comparison_of([found]).lines[0]
    now = None if line.is_over else live_of(request, found)
    stored = [] if line.is_drill else [Span(*values) for values in found.spans or []]
    spans = now.spans if now else stored
    context = {
        "title": _("Run %(id)d: %(pattern)s") % {"id": found.pk, "pattern": found.pattern},
        "line": line,
        "run": found,
        "pattern": PATTERNS.get(found.pattern),
        "live": now,
        **(now.locks() if now else {}),
        "gantt": charts.draw_gantt(spans, found.plan["workers"]) if spans else None,
        "waits": measure.stored_waits(found.waits),
        "cannot_run": missing(request.user, RUN),
        "stop_command": command("stop_lab_run", str(found.pk)),
    }
    return live_page(request, "dashboard/lab_run.html", "dashboard/_lab_run.html", context, [found])


def live_of(request: HttpRequest, found: LabRun) -> pages.LiveRun | None:
    """Current state of this run; None while it waits, or if the database is too slow."""
    try:
        seen = snapshots.of(request).once(pages.look)
    except DatabaseError:
        return None
    return seen if seen and seen.schema == found.schema else None


@require_POST
def stop(request: HttpRequest, run_id: int) -> HttpResponse:
    """Ask a run to end; the results so far are measured."""
    require(request.user, SEE)
    require(request.user, RUN)
    found = get_object_or_404(LabRun, pk=run_id)
    if requests.stop(found, who(request.user)):
        messages.success(request, _("Run %(id)d is asked to end.") % {"id": found.pk})
    else:
        messages.info(request, _("Run %(id)d is over, or was asked before.") % {"id": found.pk})
    return redirect(address("admin:ops_lab_run", found.pk))


@require_safe
def patterns(request: HttpRequest) -> HttpResponse:
    """For each pattern: its promises, limits, use, code, and its SQL from the latest run."""
    require(request.user, SEE)
    runs = requests.latest_of_each(PATTERNS)
    explained = [(pattern, runs.get(name)) for name, pattern in PATTERNS.items()]
    return page(request, "dashboard/lab_patterns.html", _("Patterns"), {"patterns": explained})


def live_page(
    request: HttpRequest, whole: str, part: str, context: dict[str, Any], runs: Iterable[LabRun]
) -> HttpResponse:
    """The whole page, or for htmx its live part, whose polling ends with the runs.

    One whose worker is gone may go on: somebody may requeue its task.
    """
    if request.headers.get("HX-Request"):
        has_ended = all(run.state not in requests.UNFINISHED for run in runs)
        return page(request, part, "", context, status=POLLING_IS_OVER if has_ended else 200)
    return page(request, whole, "", context)
