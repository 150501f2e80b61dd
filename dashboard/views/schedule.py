"""The page of scheduled commands and named locks: runs, lock holders, and releasing locks of dead holders."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from dashboard.live.fragment import SharedPart
from tasks.admin.rights import missing, require, who
from tasks.diagnosis.finding import command
from tasks.models import CommandRun
from tasks.operations import locks
from tasks.schedule import expectations
from tasks.support import reading

SEE, RELEASE, FORGET = "tasks.view_commandrun", locks.RIGHT_TO_RELEASE, locks.RIGHT_TO_FORGET
LARGEST_FENCE = 2**63 - 1


@dataclass(frozen=True)
class Asked:
    """A person's request for one name: release its lock with this fence, or (no fence) end its expectation."""

    name: str
    fence: int | None
    reason: str
    is_confirmed: bool

    @classmethod
    def from_post(cls, request: HttpRequest, *, fenced: bool) -> "Asked | None":
        """Read the form; None if it is not one of our forms."""
        name, fence = request.POST.get("name", ""), reading.digits(request.POST.get("fence", ""))
        is_fence = fence is not None and fence <= LARGEST_FENCE
        if reading.name_problem(name) or (fenced and not is_fence):
            return None
        reason = reading.reason(request.POST.get("reason", ""))
        return cls(name, fence if fenced else None, reason, "confirmed" in request.POST)


def paths(view: Callable[..., Any]) -> list[URLPattern]:
    return [
        path("ops/schedule/", view(schedule), name="ops_schedule"),
        path("ops/schedule/release/", view(release), name="ops_release"),
        path("ops/schedule/forget/", view(forget), name="ops_forget"),
        path("ops/schedule/<int:run_id>/", view(run), name="ops_command_run"),
    ]


@require_safe
def schedule(request: HttpRequest) -> HttpResponse:
    """The page; for htmx only its live fragment."""
    require(request.user, SEE)
    if "HX-Request" in request.headers:
        return LIVE.answer(request)
    LIVE.expect(request)
    context = {**admin.site.each_context(request), "title": _("Cron & named locks"), **live_context(request)}
    return render(request, "dashboard/schedule.html", context)


def live_context(request: HttpRequest) -> dict[str, Any]:
    return {
        "board": expectations.board(),
        "cannot_release": missing(request.user, RELEASE),
        "cannot_forget": missing(request.user, FORGET),
        "example": command("run_locked", "nightly-report", "--expect-every", "1d", "--", "COMMAND"),
    }


LIVE = SharedPart("dashboard/_schedule.html", live_context, every=5, is_apart=True)


@require_safe
def run(request: HttpRequest, run_id: int) -> HttpResponse:
    """One run of a command, with its output."""
    require(request.user, SEE)
    found = get_object_or_404(CommandRun, pk=run_id)
    context = {"title": _("%(name)s, run %(id)d") % {"name": found.name, "id": found.pk}, "run": found}
    return render(request, "dashboard/command_run.html", {**admin.site.each_context(request), **context})


@require_POST
def release(request: HttpRequest) -> HttpResponse:
    """First preview the holder, then release the lock."""
    require(request.user, RELEASE)
    asked = Asked.from_post(request, fenced=True)
    if asked is None or asked.fence is None:
        return render(request, "dashboard/release.html", admin.site.each_context(request), status=400)
    if not asked.is_confirmed or not asked.reason:
        return preview(request, asked)
    released = locks.release_lock(asked.name, asked.fence, who(request.user), reason=asked.reason)
    if released.released:
        messages.success(request, _("The lock %(name)s is free.") % {"name": asked.name})
    else:
        messages.error(request, released.problem)
    return redirect("admin:ops_schedule")


def preview(request: HttpRequest, asked: Asked) -> HttpResponse:
    holder = locks.holder_of(asked.name, asked.fence or 0)
    if holder is not None and holder.fence != asked.fence:
        holder = None
    context = {
        "title": _("Release this lock?"),
        "asked": asked,
        "holder": holder,
        "fault": _("Releasing a lock needs a reason, which the audit keeps.") if asked.is_confirmed else "",
        "command": command("release_lock", asked.name, "--fence", str(asked.fence), "--reason", asked.reason or "…"),
    }
    status = 200 if holder else 409
    return render(request, "dashboard/release.html", {**admin.site.each_context(request), **context}, status=status)


@require_POST
def forget(request: HttpRequest) -> HttpResponse:
    """Stop expecting a command."""
    require(request.user, FORGET)
    asked = Asked.from_post(request, fenced=False)
    if asked is None:
        return render(request, "dashboard/forget.html", admin.site.each_context(request), status=400)
    if not asked.is_confirmed:
        context = {
            "title": _("Expect this command no more?"),
            "asked": asked,
            "command": command("forget_command", asked.name),
        }
        return render(request, "dashboard/forget.html", {**admin.site.each_context(request), **context})
    forgotten = locks.forget_command(asked.name, who(request.user), reason=asked.reason)
    told = _("No run of %(name)s is expected any more.") if forgotten else _("No run of %(name)s was expected.")
    messages.success(request, told % {"name": asked.name})
    return redirect("admin:ops_schedule")
