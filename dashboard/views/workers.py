"""The page of workers: stop a worker, or release tasks that a hanging one has not begun."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_POST, require_safe

from dashboard import workers as rows
from dashboard.live import snapshot
from dashboard.live.fragment import SharedPart
from tasks import operations
from tasks.admin.rights import missing, require, who
from tasks.diagnosis.finding import command
from tasks.exceptions import RowlockError
from tasks.models import Task
from tasks.operations.filters import BIGGEST_ID, InvalidFilter
from tasks.operations.workers import MOST_RELEASED, RIGHT_TO_RELEASE, RIGHT_TO_STOP, hanging_on, unstarted
from tasks.queue import presence
from tasks.support import reading
from tasks.support.database import is_lock_not_available

SEE, STOP, RELEASE = "tasks.view_worker", RIGHT_TO_STOP, RIGHT_TO_RELEASE
BIGGEST_VERSION = 2**31 - 1
MOST_TOLD = 5


@dataclass(frozen=True)
class Asked:
    """A person's request for one worker; `versions`: the tasks that the preview showed, with their versions."""

    worker_id: str
    reason: str
    is_confirmed: bool
    versions: dict[int, int] = field(default_factory=dict)

    @classmethod
    def from_post(cls, request: HttpRequest) -> "Asked | None":
        """Read the form; None if it is not one of our forms."""
        worker_id = request.POST.get("worker", "")
        versions = parse_versions(request.POST.get("versions", ""))
        if reading.name_problem(worker_id) or versions is None:
            return None
        reason = reading.reason(request.POST.get("reason", ""))
        return cls(worker_id, reason, "confirmed" in request.POST, versions)

    def command(self, name: str) -> str:
        return command(name, self.worker_id, "--reason", self.reason or "…")


def parse_versions(text: str) -> dict[int, int] | None:
    """Parse `4711:2 4712:5`; None for anything else."""
    pairs = [pair.split(":") for pair in text.split()]
    if len(pairs) > MOST_RELEASED or any(len(pair) != 2 for pair in pairs):
        return None
    versions = {reading.digits(id): reading.digits(version) for id, version in pairs}
    known = {id: at for id, at in versions.items() if id is not None and at is not None}
    is_known = len(known) == len(versions)
    return known if is_known and all(id <= BIGGEST_ID and at <= BIGGEST_VERSION for id, at in known.items()) else None


def paths(view: Callable[..., Any]) -> list[URLPattern]:
    return [
        path("ops/workers/", view(workers), name="ops_workers"),
        path("ops/workers/stop/", view(stop), name="ops_stop_worker"),
        path("ops/workers/release/", view(release), name="ops_release_unstarted"),
    ]


@require_safe
def workers(request: HttpRequest) -> HttpResponse:
    """The page; for htmx only its live fragment. `?ended` unfolds the ended workers."""
    require(request.user, SEE)
    if request.headers.get("HX-Request"):
        return LIVE.answer(request)
    LIVE.expect(request)
    context = {"ended": None, **live_context(request)}
    if "ended" in request.GET:
        try:
            ended = rows.look_at_ended(rows.Place.from_params(request.GET))
        except InvalidFilter as error:
            return page(request, "dashboard/workers.html", {"fault": str(error)}, status=400)
        context |= {"ended": ended, "older": following(ended)}
    return page(request, "dashboard/workers.html", context)


def live_context(request: HttpRequest) -> dict[str, Any]:
    """Live data: an opened page queries for itself, refreshes share one snapshot."""
    return {
        "board": snapshot.of(request).once(rows.look) if request.headers.get("HX-Request") else rows.look(),
        "cannot_stop": missing(request.user, STOP),
        "cannot_release": missing(request.user, RELEASE),
        "start": command("run_worker"),
    }


LIVE = SharedPart("dashboard/_workers.html", live_context, every=2)


def following(ended: rows.Ended) -> str:
    """The query string of the next page of ended workers; empty if this is the last."""
    place = ended.next_place
    if place is None or place.stopped_at is None:
        return ""
    return "?" + urlencode({"ended": "", "before": place.stopped_at.isoformat(), "id": place.worker_id})


@require_POST
def stop(request: HttpRequest) -> HttpResponse:
    """First preview the worker's tasks, then ask it to stop."""
    require(request.user, SEE)
    require(request.user, STOP)
    asked = Asked.from_post(request)
    if asked is None:
        return unknown_form(request)
    if not asked.is_confirmed:
        context = {"title": _("Ask this worker to stop?"), "action": "stop", "url": "admin:ops_stop_worker"}
        return preview(request, asked, {**context, "command": asked.command("stop_worker")})
    try:
        is_new = operations.stop_worker(asked.worker_id, who(request.user), reason=asked.reason)
    except (RowlockError, DatabaseError) as error:
        return refused(request, error)
    told = (
        _("Worker %(id)s is asked to finish what it runs and to stop.")
        if is_new
        else _("Worker %(id)s has stopped, or was asked before; nothing changed.")
    )
    messages.success(request, told % {"id": asked.worker_id})
    return redirect("admin:ops_workers")


def preview(request: HttpRequest, asked: Asked, context: dict[str, Any]) -> HttpResponse:
    state = presence.states([asked.worker_id])[asked.worker_id]
    status = 200 if state.registered and not state.is_dead else 409
    common = {"asked": asked, "worker": state, "is_gone": status == 409}
    return page(request, "dashboard/worker_action.html", {**common, **context}, status=status)


@require_POST
def release(request: HttpRequest) -> HttpResponse:
    """First preview the tasks with their versions, then release exactly those."""
    require(request.user, SEE)
    require(request.user, RELEASE)
    asked = Asked.from_post(request)
    if asked is None:
        return unknown_form(request)
    try:
        if not asked.is_confirmed:
            return preview_release(request, asked)
        result = operations.release_unstarted(
            asked.worker_id, who(request.user), reason=asked.reason, versions=asked.versions
        )
    except (RowlockError, DatabaseError) as error:
        return refused(request, error)
    for level, text in told(result):
        messages.add_message(request, level, text)
    return redirect("admin:ops_workers")


def preview_release(request: HttpRequest, asked: Asked) -> HttpResponse:
    current = hanging_on(asked.worker_id)
    tasks = list(Task.objects.filter(pk__in=unstarted(asked.worker_id, current.id)).order_by("pk"))
    context = {
        "title": _("Release what this worker has not begun?"),
        "action": "release",
        "url": "admin:ops_release_unstarted",
        "tasks": tasks,
        "current": current,
        "versions": " ".join(f"{task.pk}:{task.version}" for task in tasks),
        "command": asked.command("release_unstarted"),
    }
    return preview(request, asked, context)


def told(result: operations.Result) -> list[tuple[int, str]]:
    """Messages for the operator: pairs of level and sentence."""
    answers = []
    if result.done:
        text = ngettext("%(number)d task was released.", "%(number)d tasks were released.", len(result.done))
        answers.append((messages.SUCCESS, text % {"number": len(result.done)}))
    for task_id, refusal in list(result.refused.items())[:MOST_TOLD]:
        text = _("#%(id)d stays as it is: %(reason)s.") % {"id": task_id, "reason": refusal.sentence}
        answers.append((messages.WARNING, text))
    if len(result.refused) > MOST_TOLD:
        text = _("%(number)d more stay as they are.") % {"number": len(result.refused) - MOST_TOLD}
        answers.append((messages.WARNING, text))
    return answers or [(messages.INFO, _("There was nothing to release."))]


def refused(request: HttpRequest, error: Exception) -> HttpResponse:
    """Redirect with the reason; database errors other than a busy lock are raised again."""
    if isinstance(error, DatabaseError) and not is_lock_not_available(error):
        raise error
    is_busy = isinstance(error, DatabaseError)
    messages.error(request, _("The worker's row is busy: somebody holds it. Try again.") if is_busy else str(error))
    return redirect("admin:ops_workers")


def unknown_form(request: HttpRequest) -> HttpResponse:
    return page(request, "dashboard/worker_action.html", {"title": _("Workers")}, status=400)


def page(request: HttpRequest, template: str, context: dict[str, Any], status: int = 200) -> HttpResponse:
    common = {**admin.site.each_context(request), "title": _("Workers")}
    return render(request, template, {**common, **context}, status=status)
