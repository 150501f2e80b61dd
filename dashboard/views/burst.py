"""Run a burst: a worker on the web server's host that ends when nothing is due."""

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods

from dashboard import burst
from dashboard.burst import Burst
from dashboard.layout import page
from dashboard.task_pages.listing import known_queues
from tasks.admin.forms import OptionField, WholeNumberField
from tasks.admin.rights import missing, require, who
from tasks.commands import types
from tasks.diagnosis.finding import command
from tasks.models import CommandRun
from tasks.operations.tokens import is_token, new_token, once
from tasks.queue.strategies import DEFAULT_STRATEGY, STRATEGIES
from tasks.support import audit
from tasks.support.addresses import address
from tasks.support.audit import Change

SEE, RUN = "tasks.view_task", "tasks.run_burst"
SHOWN_RUNS = 10


class BurstForm(forms.Form):
    """The parameters of a burst, within limits."""

    strategy = forms.ChoiceField(
        label=gettext_lazy("Strategy"), choices=[(name, name) for name in sorted(STRATEGIES)], initial=DEFAULT_STRATEGY
    )
    queue_name = OptionField(
        types.name,
        label=gettext_lazy("Queue (empty: all)"),
        widget=forms.TextInput(attrs={"list": "queues"}),
    )
    max_tasks = WholeNumberField(label=gettext_lazy("Task limit"), min_value=1, max_value=100_000, initial=1000)
    limit_seconds = WholeNumberField(label=gettext_lazy("Time limit (s)"), min_value=5, max_value=600, initial=60)


def paths(view: Callable[..., Any]) -> list[URLPattern]:
    return [path("ops/burst/", view(run_burst), name="ops_burst")]


@require_http_methods(["GET", "HEAD", "POST"])
def run_burst(request: HttpRequest) -> HttpResponse:
    """GET: the page; for htmx its live fragment. POST: start a burst."""
    require(request.user, SEE)
    if request.method == "POST":
        return start(request)
    if request.headers.get("HX-Request"):
        return render(request, "dashboard/_burst.html", state())
    return answer(request, BurstForm(initial={"queue_name": request.GET.get("queue", "")}))


def start(request: HttpRequest) -> HttpResponse:
    require(request.user, RUN)
    if not burst.is_allowed():
        raise PermissionDenied(_("Bursts are not allowed on this server: set ROWLOCK_BURST=1 to allow them."))
    form, token = BurstForm(request.POST), request.POST.get("token", "")
    if not form.is_valid() or not is_token(token):
        return answer(request, form, status=400)
    wanted = Burst(**form.cleaned_data)

    def record() -> str:
        action = f"burst {' '.join(wanted.words[3:])}"
        audit.record(connection, who(request.user), action, [Change(audit.command(burst.NAME))])
        return burst.NAME

    if once(token, record).is_new and not burst.start(wanted):
        messages.warning(request, _("One runs already; this server runs one at a time."))
    return redirect(address("admin:ops_burst"))


def state() -> dict[str, Any]:
    """The burst of this process, and the latest runs on any server."""
    runs = list(CommandRun.objects.filter(name=burst.NAME).order_by("-id")[:SHOWN_RUNS])
    latest = burst.latest()
    is_running = (latest is not None and not latest.is_over) or any(run.finished_at is None for run in runs)
    return {"latest": latest, "runs": runs, "is_running": is_running}


def answer(request: HttpRequest, form: BurstForm, status: int = 200) -> HttpResponse:
    context = {
        **state(),
        "form": form,
        "token": new_token(),
        "is_allowed": burst.is_allowed(),
        "missing_right": missing(request.user, RUN),
        "queues": known_queues(),
        "command": command(*Burst(DEFAULT_STRATEGY).words),
    }
    return page(request, "dashboard/burst.html", _("Run a burst"), context, status=status)
