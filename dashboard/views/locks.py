"""The page of locks and sessions, signals to a session, and the page of past lock waits."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST, require_safe

from dashboard.live import snapshot
from dashboard.live.fragment import SharedPart
from dashboard.locks import activity, attribution, rows, signals
from dashboard.locks.attribution import RUNNING
from dashboard.locks.history import DEADLOCKS, WAITS, look_back
from tasks.admin.rights import missing, require, who
from tasks.diagnosis.finding import command
from tasks.locking import rowlocks
from tasks.locking.named import postgres
from tasks.operations.filters import BIGGEST_ID
from tasks.support import reading
from tasks.support.database import is_lock_not_available
from tasks.support.durations import spoken

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
SEE_HISTORY = "dashboard.view_lockwait"
AROUND = {  # minutes before and after the moment
    1: gettext_lazy("1 minute"),
    5: gettext_lazy("5 minutes"),
    15: gettext_lazy("15 minutes"),
    60: gettext_lazy("1 hour"),
    720: gettext_lazy("12 hours"),
}
USUAL = 15
OLDEST, NEWEST = datetime(2000, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Moment:
    """The requested time, minutes around it, and the id below which the list continues."""

    at: datetime
    around: int
    before: int | None = None
    problem: str = ""

    @classmethod
    def of(cls, request: HttpRequest) -> "Moment":
        """Read the query, with UTC as default zone; an unreadable time becomes now, with `problem` set."""
        written, around, before = (request.GET.get(key, "").strip() for key in ("at", "around", "before"))
        minutes = number(around)
        chosen = minutes if minutes in AROUND else USUAL
        at = parsed(written) if written else timezone.now()
        if at is None:
            problem = _("“%(text)s” is no time like 2026-11-21 03:10; this is now.") % {"text": written[:50]}
            return cls(timezone.now(), chosen, problem=problem)
        return cls(at, chosen, number(before))

    @property
    def query_of_older(self) -> str:
        return urlencode({"at": self.at.isoformat(), "around": self.around})

    @property
    def command(self) -> str:
        at = f"{self.at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
        return command("show_lock_history", "--at", at, "--around", f"{self.around}m")

    @property
    def written(self) -> str:
        """In the format of the form's field, in UTC."""
        return f"{self.at.astimezone(UTC):%Y-%m-%dT%H:%M}"


def number(text: str) -> int | None:
    """Parse an id or a number of minutes; None for anything else."""
    found = reading.digits(text)
    return found if found is not None and found <= BIGGEST_ID else None


def parsed(text: str) -> datetime | None:
    """Parse a time as people and the form write it; None for anything else."""
    try:
        at = parse_datetime(text)
    except ValueError:
        return None
    if at is None:
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return at if OLDEST < at < NEWEST else None


@require_safe
def history(request: HttpRequest) -> HttpResponse:
    require(request.user, SEE_HISTORY)
    moment = Moment.of(request)
    past = look_back(moment.at, timedelta(minutes=moment.around), before=moment.before)
    context = {
        "title": _("Who blocked whom"),
        "moment": moment,
        "choices": AROUND.items(),
        "past": past,
        "tree": rows.tree_rows(past.tree, {}, may_signal=False),
        "waits": [rows.past_wait(wait) for wait in past.waits],
        "statements": [WAITS.strip(), DEADLOCKS.strip()],
    }
    return render(request, "dashboard/lock_history.html", {**admin.site.each_context(request), **context})


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
        if pid is None or pid > LARGEST_PID or at is None or action not in signals.ACTIONS:
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
        path("ops/locks/history/", view(history), name="ops_lock_history"),
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
    look = attribution.lock_page(snapshot.of(request))
    cannot_signal = missing(request.user, SIGNAL)
    return {
        "look": look,
        "longest_wait": longest_of(look.longest_wait),
        "tree": rows.tree_rows(look.lines, look.behind, may_signal=not cannot_signal),
        "rows": look.held[:MOST_ROWS],
        "sessions": rows.session_rows(look, MOST_SESSIONS, may_signal=not cannot_signal),
        "more_sessions": max(0, len(look.seen.sessions) - MOST_SESSIONS),
        "cannot_signal": cannot_signal,
        "statements": STATEMENTS,
    }


def longest_of(seconds: float | None) -> str:
    return "" if seconds is None else _(", the longest for %(age)s") % {"age": spoken(seconds)}


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
    expected = signals.foresee(asked.pid, asked.started)
    is_terminate = asked.action == "terminate"
    context = {
        "title": _("End this session?") if is_terminate else _("Cancel this query?"),
        "asked": asked,
        "expected": expected,
        "session": expected.session,
        "work": rows.work_of(expected.work),
        "undoing": signals.undone_work(expected.session, asked.action) if expected.session else "",
        "task_fate": signals.consequence_for_task(expected.work.task) if expected.work.task else "",
        "fault": fault,
    }
    status = 409 if expected.problem else 200
    return render(request, "dashboard/signal.html", {**admin.site.each_context(request), **context}, status=status)


def carry_out(request: HttpRequest, asked: Signal) -> HttpResponse:
    try:
        signalled = signals.signal(asked.pid, asked.started, asked.action, who(request.user), reason=asked.reason)
    except signals.AlreadySignalled as problem:
        messages.info(request, str(problem))
    except signals.NotSignalled as problem:
        messages.error(request, str(problem))
    except DatabaseError as error:
        messages.error(request, told_refusal(error, asked.pid))
    else:
        told = _("Backend %(pid)d was signalled.") if signalled else _("Backend %(pid)d ended by itself meanwhile.")
        messages.success(request, told % {"pid": asked.pid})
    snapshot.forget()
    return redirect("admin:ops_locks")


def told_refusal(error: DatabaseError, pid: int) -> str:
    """Explain the server's refusal; other errors are raised again."""
    if is_lock_not_available(error):
        return _("Somebody else is signalling backend %(pid)d at this moment; look again.") % {"pid": pid}
    if getattr(error.__cause__, "sqlstate", None) != INSUFFICIENT_PRIVILEGE:
        raise error
    return signals.missing_grant(pid)
