"""The demo's page: staged scenes, the measured death of a worker, and removal."""

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboard.demo import control
from dashboard.demo.control import COMMAND_LINES, DIRECT, Request
from dashboard.layout import page
from dashboard.live import snapshots
from tasks.admin.forms import reason_of
from tasks.admin.rights import missing, require, who
from tasks.support.addresses import address

SEE = "tasks.view_task"


def paths(view: Callable[..., Any]) -> list[URLPattern]:
    return [
        path("ops/demo/", view(demo), name="ops_demo"),
        path("ops/demo/ask/", view(ask), name="ops_demo_ask"),
        path("ops/demo/remove/", view(remove), name="ops_demo_remove"),
    ]


@require_safe
def demo(request: HttpRequest) -> HttpResponse:
    """The page; for htmx only its live fragment."""
    require(request.user, SEE)
    template = "dashboard/_demo_panel.html" if request.headers.get("HX-Request") else "dashboard/demo.html"
    state = state_or_404()
    context = {
        "is_loaded": state.is_loaded,
        "director": state.director,
        "scenes": control.scenes() if state.is_loaded else [],
        "kills": control.kills() if state.is_loaded else [],
        "cannot_direct": missing(request.user, DIRECT),
        "commands": COMMAND_LINES,
    }
    return page(request, template, _("Demo"), context)


@require_POST
def ask(request: HttpRequest) -> HttpResponse:
    """Ask the director that the person saw to stop, kill one of its workers, or rebuild the lock chain."""
    require(request.user, DIRECT)
    seen = state_or_404().director
    action = request.POST.get("do", "")
    if action not in list(Request):
        return page(request, "dashboard/demo_remove.html", _("Demo"), {}, status=400)
    if seen is None or seen.mark != request.POST.get("director"):
        messages.error(request, _("That director has ended. Nothing was done."))
    elif action != Request.STOP:
        control.send_request(Request(action), who(request.user))
        messages.success(request, _("The director was asked; the result appears below."))
    elif control.stop(who(request.user)):
        messages.success(request, _("The demo has stopped. What it loaded stays until it is removed."))
    else:
        messages.error(request, _("The director has not ended yet. Try again in a moment."))
    snapshots.forget()
    return redirect(address("admin:ops_demo"))


@require_http_methods(["GET", "HEAD", "POST"])
def remove(request: HttpRequest) -> HttpResponse:
    """GET: preview what would be deleted. POST, with a reason: stop the director, then delete."""
    require(request.user, DIRECT)
    state_or_404()
    reason = reason_of(request.POST)
    if not reason:
        return preview(request)
    if not control.stop(who(request.user)):
        messages.error(request, _("The director did not end, so nothing was removed. Try again in a moment."))
        return redirect(address("admin:ops_demo_remove"))
    removed = control.remove(who(request.user), reason=reason)
    snapshots.forget()
    text = _(
        "Removed: %(tasks)d tasks, %(orders)d orders, %(accounts)d accounts, %(queues)d queues, "
        "%(commands)d cron lines."
    ) % removed  # fmt: skip
    if control.is_anything_left():
        messages.warning(request, " ".join((text, _("Some rows are held at this moment: remove again."))))
        return redirect(address("admin:ops_demo_remove"))
    messages.success(request, text)
    return redirect(address("admin:index"))


def state_or_404() -> control.State:
    state = control.state()
    if not state.is_there:
        raise Http404(_("There is no demo on this site."))
    return state


def preview(request: HttpRequest) -> HttpResponse:
    """Show the rows to be deleted; status 400 for a POST, which lacked a reason."""
    is_post = request.method == "POST"
    context = {
        "fault": _("This needs a reason, which the audit keeps.") if is_post else "",
        "counts": control.preview(),
        "most": control.MOST_COUNTED,
        "command": COMMAND_LINES["remove"],
    }
    return page(request, "dashboard/demo_remove.html", _("Remove the demo?"), context, status=400 if is_post else 200)
