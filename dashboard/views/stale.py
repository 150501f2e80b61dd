"""The page "Stuck": tasks that dead and silent workers still hold, and recovering them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import URLPattern, path
from django.utils.translation import get_language, ngettext
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from dashboard import stale as stale_tasks
from dashboard.live import snapshot
from dashboard.live.fragment import SharedPart
from dashboard.task_pages.actions import PAGE_ACTIONS, buttons_of
from tasks.admin.rights import missing, require, who
from tasks.diagnosis.finding import command
from tasks.operations.filters import InvalidFilter
from tasks.support import reading

SEE, TAKE = "tasks.view_task", "tasks.recover_task"
MOST_WORKERS = 200


@dataclass(frozen=True)
class Asked:
    """A person's request to recover the tasks of these workers, as the page showed them."""

    worker_ids: list[str]
    reason: str
    is_confirmed: bool

    @classmethod
    def from_post(cls, request: HttpRequest) -> "Asked | None":
        """Read the form; None if it is not one of our forms."""
        ids = list(dict.fromkeys(request.POST.getlist("worker")))
        if not 1 <= len(ids) <= MOST_WORKERS or any(map(reading.name_problem, ids)):
            return None
        reason = reading.reason(request.POST.get("reason", ""))
        return cls(ids, reason, "confirmed" in request.POST)


def paths(view: Callable[..., Any]) -> list[URLPattern]:
    return [
        path("ops/stale/", view(stale), name="ops_stale"),
        path("ops/stale/take-back/", view(take_back), name="ops_take_back"),
    ]


@require_safe
def stale(request: HttpRequest) -> HttpResponse:
    """The page; for htmx only its live fragment."""
    require(request.user, SEE)
    try:
        place = stale_tasks.Place.from_params(request.GET)
    except InvalidFilter as error:
        return page(request, "dashboard/stale.html", {"fault": str(error)}, status=400)
    is_part = "HX-Request" in request.headers
    if place == stale_tasks.Place():
        if is_part:
            return LIVE.answer(request)
        LIVE.expect(request)
    template = "dashboard/_stale.html" if is_part else "dashboard/stale.html"
    return page(request, template, context_of(request, stale_tasks.look(place)))


def context_of(request: HttpRequest, seen: stale_tasks.Stale) -> dict[str, Any]:
    buttons = buttons_of([PAGE_ACTIONS["recover"], PAGE_ACTIONS["requeue"]], [], request.user)
    return {
        "seen": seen,
        "older": following(seen),
        "cannot_take": missing(request.user, TAKE),
        "buttons": buttons,
        "forbidden": tuple(button.action.name for button in buttons if button.missing_right),
        "command": command("recover_tasks"),
        "start": command("run_worker"),
    }


def first_context(request: HttpRequest) -> dict[str, Any]:
    """Data of the first page: an opened page queries for itself, refreshes share one snapshot."""
    return context_of(request, snapshot.of(request).once(first_page(get_language() or "")))


LIVE = SharedPart("dashboard/_stale.html", first_context, every=2)


@cache
def first_page(language: str) -> Callable[[], stale_tasks.Stale]:
    """The query of the first page in this language, which must be active when it runs."""
    return lambda: stale_tasks.look(stale_tasks.Place())


def following(seen: stale_tasks.Stale) -> str:
    """The query string of the next page; empty if this is the last."""
    place = seen.next_place
    return "?" + urlencode({"worker": place.worker_id, "after": place.task_id}) if place else ""


@require_POST
def take_back(request: HttpRequest) -> HttpResponse:
    """First preview the tasks and how their workers died, then recover them."""
    require(request.user, SEE)
    require(request.user, TAKE)
    asked = Asked.from_post(request)
    if asked is None:
        return page(request, "dashboard/take_back.html", {"title": _("Take back")}, status=400)
    found = stale_tasks.look_at_holdings(asked.worker_ids)
    if not asked.is_confirmed and found.number:
        words = ["--reason", asked.reason or "…"]
        context = {"title": _("Take these tasks back?"), "asked": asked, "found": found, "start": command("run_worker")}
        return page(request, "dashboard/take_back.html", {**context, "command": command("recover_tasks", *words)})
    outcome = stale_tasks.take_back(asked.worker_ids, who(request.user), reason=asked.reason)
    snapshot.forget()
    for level, text in told(outcome):
        messages.add_message(request, level, text)
    return redirect("admin:ops_stale")


def told(outcome: stale_tasks.Outcome) -> list[tuple[int, str]]:
    """Messages for the operator: pairs of level and sentence."""
    if not outcome.taken and not outcome.left:
        return [(messages.INFO, _("Nothing was left to take back: these workers hold no task any more."))]
    answers = []
    if outcome.taken:
        text = ngettext("%(number)d task was taken back", "%(number)d tasks were taken back", outcome.taken)
        by_status = ", ".join(f"{number} {status}" for status, number in outcome.by_status.items())
        answers.append((messages.SUCCESS, f"{text} ({by_status})." % {"number": outcome.taken}))
    if outcome.left:
        text = ngettext(
            "%(number)d task stays: its worker is not dead, not yet, or its row is locked.",
            "%(number)d tasks stay: their worker is not dead, not yet, or their rows are locked.",
            outcome.left,
        )
        answers.append((messages.WARNING, text % {"number": outcome.left}))
    return answers


def page(request: HttpRequest, template: str, context: dict[str, Any], status: int = 200) -> HttpResponse:
    common = {**admin.site.each_context(request), "title": _("Stuck")}
    return render(request, template, {**common, **context}, status=status)
