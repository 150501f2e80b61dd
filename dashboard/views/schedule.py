"""The page *Schedules*: the schedules of tasks, runs of commands, holders of named locks, and releasing locks."""

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from dashboard import links
from dashboard.layout import page
from dashboard.live import snapshots
from dashboard.live.fragment import SharedPart
from dashboard.schedules import SEE as SEE_SCHEDULES
from dashboard.schedules import actions, editor, rows, timeline
from dashboard.views.overview import unless_slow
from tasks.admin.forms import OptionField, PreviewedForm, WholeNumberField
from tasks.admin.rights import lacking, missing, require, who
from tasks.commands import types
from tasks.diagnosis.finding import command
from tasks.models import CommandRun
from tasks.operations import locks, schedules
from tasks.schedule import expectations
from tasks.support import audit
from tasks.support.addresses import address

SEE, RELEASE, FORGET = "tasks.view_commandrun", locks.RIGHT_TO_RELEASE, locks.RIGHT_TO_FORGET
LINE_SECONDS = 30
LARGEST_FENCE = 2**63 - 1


class ForgetForm(PreviewedForm):
    """A person's request to stop monitoring this command."""

    name = OptionField(types.name, required=True, strip=False)


class ReleaseForm(ForgetForm):
    """A person's request to release the lock of this name, held under this fence."""

    fence = WholeNumberField(min_value=0, max_value=LARGEST_FENCE)


def paths(view: Callable[..., Any]) -> list[URLPattern]:
    return [
        path("ops/schedule/", view(schedule), name="ops_schedule"),
        path("ops/schedule/release/", view(release), name="ops_release"),
        path("ops/schedule/forget/", view(forget), name="ops_forget"),
        path("ops/schedule/<int:run_id>/", view(run), name="ops_command_run"),
        path("ops/schedule/line/", view(time_line), name="ops_schedule_line"),
        path("ops/schedule/add/", view(editor.add), name="ops_schedule_add"),
        path("ops/schedule/edit/", view(editor.edit), name="ops_schedule_edit"),
        path("ops/schedule/times/", view(editor.times), name="ops_schedule_times"),
        path("ops/schedule/switch-on/", view(actions.switch_on), name="ops_schedule_switch_on"),
        path("ops/schedule/do/<slug:name>/", view(actions.act), name="ops_schedule_act"),
    ]


@require_safe
def schedule(request: HttpRequest) -> HttpResponse:
    """The page; for htmx only its live fragment."""
    require(request.user, SEE)
    if "HX-Request" in request.headers:
        return LIVE.answer(request)
    LIVE.expect(request)
    context = live_context(request)
    if "listing" in context:
        context |= {**line_context(request), "line_seconds": LINE_SECONDS}
    return page(request, "dashboard/schedule.html", _("Schedules"), context)


def live_context(request: HttpRequest) -> dict[str, Any]:
    return {
        **schedules_context(request),
        "board": expectations.board(),
        "cannot_release": missing(request.user, RELEASE),
        "cannot_forget": missing(request.user, FORGET),
        "example": command("run_locked", "nightly-report", "--expect-every", "1d", "--", "COMMAND"),
    }


def schedules_context(request: HttpRequest) -> dict[str, Any]:
    """The table of schedules, for those who may see them."""
    if not request.user.has_perm(SEE_SCHEDULES):
        return {}
    search, now = rows.Search.of(request.GET), snapshots.of(request).now
    offers = [(offer, rows.in_words(offer.cron, None)) for offer in schedules.offers()]
    found = rows.listing(search, now)
    return {"search": search, "listing": found, "offers": offers, "now": now, **lacking(request.user, actions.RIGHTS)}


LIVE = SharedPart("dashboard/_schedule.html", live_context, every=5, is_apart=True)


@require_safe
def time_line(request: HttpRequest) -> HttpResponse:
    """The time line alone, which refreshes more slowly."""
    require(request.user, SEE_SCHEDULES)
    return LINE.answer(request)


def line_context(request: HttpRequest) -> dict[str, Any]:
    found = unless_slow(snapshots.current("schedule line", LINE_SECONDS, grace=snapshots.GRACE), timeline.line)
    if found is None:
        return {"line": None}
    return {
        "line": found,
        "chart": timeline.chart_of(found),
        "axis": timeline.axis_of(found),
        "entries": [entry for slot in found.slots for entry in slot.entries()],
    }


LINE = SharedPart(
    "dashboard/_schedule_line.html", line_context, every=LINE_SECONDS, is_apart=True, seconds=LINE_SECONDS
)


@require_safe
def run(request: HttpRequest, run_id: int) -> HttpResponse:
    """One run of a command, with its output."""
    require(request.user, SEE)
    found = get_object_or_404(CommandRun, pk=run_id)
    title = _("%(name)s, run %(id)d") % {"name": found.name, "id": found.pk}
    return page(request, "dashboard/command_run.html", title, {"run": found})


@require_POST
def release(request: HttpRequest) -> HttpResponse:
    """First preview the holder, then release the lock."""
    require(request.user, RELEASE)
    values = ReleaseForm.read(request.POST)
    if values is None:
        return page(request, "dashboard/release.html", "", {}, status=400)
    name, fence, reason = values["name"], values["fence"], values["reason"]
    back = links.back_to(request, address("admin:ops_schedule"))
    if not values["confirmed"] or not reason:
        holder = locks.holder_of(name, fence)
        if holder is not None and holder.fence != fence:
            holder = None
        context = {
            "asked": values,
            "holder": holder,
            "next": back,
            "fault": _("This needs a reason, which the audit keeps.") if values["confirmed"] else "",
            "command": command("release_lock", name, "--fence", str(fence), "--reason", reason or "…"),
        }
        return page(request, "dashboard/release.html", _("Release this lock?"), context, status=200 if holder else 409)
    released = locks.release_lock(name, fence, who(request.user), reason=reason)
    if released.released:
        lock = links.history(audit.lock(name), name)
        messages.success(request, links.sentence(_("The lock %(name)s is free."), name=lock))
    else:
        messages.error(request, released.problem)
    return redirect(back)


@require_POST
def forget(request: HttpRequest) -> HttpResponse:
    """Stop monitoring a command."""
    require(request.user, FORGET)
    values = ForgetForm.read(request.POST)
    if values is None:
        return page(request, "dashboard/forget.html", "", {}, status=400)
    name = values["name"]
    if not values["confirmed"]:
        context = {"asked": values, "command": command("forget_command", name)}
        return page(request, "dashboard/forget.html", _("Stop monitoring this command?"), context)
    forgotten = locks.forget_command(name, who(request.user), reason=values["reason"])
    text = _("Monitoring of %(name)s has stopped.") if forgotten else _("The command %(name)s was not monitored.")
    messages.success(request, text % {"name": name})
    return redirect(address("admin:ops_schedule"))
