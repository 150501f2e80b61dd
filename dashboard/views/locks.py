"""The live lock tree, and signals to its sessions."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import admin, messages
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import URLPattern, path
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from dashboard import shared_look
from dashboard.locks import activity, backends, consequences
from dashboard.locks import look as lock_look
from dashboard.locks.behind import RUNNING
from dashboard.shared_part import SharedPart
from dashboard.views import lock_history
from tasks import reading
from tasks.admin.rights import missing, require, who
from tasks.locking import rowlocks
from tasks.locking.errors import is_lock_not_available
from tasks.locking.leases import postgres
from tasks.verdicts.words import command

SEE, SIGNAL = "dashboard.view_backend", "dashboard.signal_backend"
INSUFFICIENT_PRIVILEGE = "42501"
LARGEST_PID = 2**31 - 1
MOST_ROWS = 50
MOST_SESSIONS = 50  # waiting ones first, then by the age of their transaction
# "SQL behind this": the statements of each panel, as sent.
STATEMENTS = {
    "tree": [text.strip() for text in (activity.LOCKS, postgres.WAITERS, postgres.HOLDERS)],
    "rows": [rowlocks.LOCKERS.strip()],
    "sessions": [text.strip() for text in (activity.SESSIONS, RUNNING)],
}


@dataclass(frozen=True)
class Signal:
    """A person's request for one backend, as the page showed it."""

    pid: int
    started: datetime
    action: str
    reason: str
    is_confirmed: bool

    @classmethod
    def from_post(cls, request: HttpRequest) -> "Signal | None":
        """Read the form; None if it is not one of our forms."""
        post = request.POST
        pid, started, action = reading.digits(post.get("pid", "")), post.get("started", ""), post.get("action", "")
        at = parse_datetime(started)
        if pid is None or pid > LARGEST_PID or at is None or action not in backends.ACTIONS:
            return None
        reason = reading.reason(post.get("reason", ""))
        return cls(pid, at, action, reason, "confirmed" in post)

    @property
    def command(self) -> str:
        reason = ("--reason", self.reason or "…") if self.action == "terminate" or self.reason else ()
        started = self.started.isoformat()
        return command("signal_backend", str(self.pid), "--started", started, f"--{self.action}", *reason)


def paths(view: Callable[..., Any]) -> list[URLPattern]:
    return [
        path("ops/locks/", view(locks), name="ops_locks"),
        *lock_history.paths(view),
        path("ops/locks/signal/", view(signal), name="ops_signal"),
    ]


@require_safe
def locks(request: HttpRequest) -> HttpResponse:
    """The page; for htmx only its live fragment."""
    require(request.user, SEE)
    if request.headers.get("HX-Request"):
        return LIVE.answer(request)
    context = {**admin.site.each_context(request), "title": _("Database locks"), "panel": LIVE.text(request)}
    return render(request, "dashboard/locks.html", context)


def live_context(request: HttpRequest) -> dict[str, Any]:
    look = lock_look.of(shared_look.of(request))
    return {
        "look": look,
        "rows": look.held[:MOST_ROWS],
        "sessions": look.seen.sessions[:MOST_SESSIONS],
        "more_sessions": max(0, len(look.seen.sessions) - MOST_SESSIONS),
        "cannot_signal": missing(request.user, SIGNAL),
        "statements": STATEMENTS,
    }


LIVE = SharedPart("dashboard/_locks.html", live_context, every=2)


@require_POST
def signal(request: HttpRequest) -> HttpResponse:
    """First preview the effects, then send the signal."""
    require(request.user, SIGNAL)
    asked = Signal.from_post(request)
    if asked is None:
        return render(request, "dashboard/signal.html", {**admin.site.each_context(request)}, status=400)
    fault = _("Ending a session needs a reason, which the audit keeps.") if needs_reason(asked) else ""
    if not asked.is_confirmed or fault:
        return preview(request, asked, fault if asked.is_confirmed else "")
    return carry_out(request, asked)


def needs_reason(asked: Signal) -> bool:
    return asked.action == "terminate" and not asked.reason


def preview(request: HttpRequest, asked: Signal, fault: str) -> HttpResponse:
    expected = consequences.foresee(asked.pid, asked.started)
    is_terminate = asked.action == "terminate"
    context = {
        "title": _("End this session?") if is_terminate else _("Cancel this query?"),
        "asked": asked,
        "expected": expected,
        "session": expected.session,
        "work": expected.work,
        "undoing": consequences.told_undoing(expected.session, asked.action) if expected.session else "",
        "task_fate": consequences.told_task(expected.work.task) if expected.work.task else "",
        "fault": fault,
    }
    status = 409 if expected.problem else 200
    return render(request, "dashboard/signal.html", {**admin.site.each_context(request), **context}, status=status)


def carry_out(request: HttpRequest, asked: Signal) -> HttpResponse:
    try:
        signalled = backends.signal(asked.pid, asked.started, asked.action, who(request.user), reason=asked.reason)
    except backends.AlreadySignalled as problem:
        messages.info(request, str(problem))
    except backends.NotSignalled as problem:
        messages.error(request, str(problem))
    except DatabaseError as error:
        messages.error(request, told_refusal(error, asked.pid))
    else:
        told = _("Backend %(pid)d was signalled.") if signalled else _("Backend %(pid)d ended by itself meanwhile.")
        messages.success(request, told % {"pid": asked.pid})
    shared_look.forget()
    return redirect("admin:ops_locks")


def told_refusal(error: DatabaseError, pid: int) -> str:
    """Explain the server's refusal; other errors are raised again."""
    if is_lock_not_available(error):
        return _("Somebody else is signalling backend %(pid)d at this moment; look again.") % {"pid": pid}
    if getattr(error.__cause__, "sqlstate", None) != INSUFFICIENT_PRIVILEGE:
        raise error
    return backends.missing_grant(pid)
