"""The page of locks and sessions, signals to a session, and the page of past lock waits."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django import forms
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

from dashboard.live import snapshots
from dashboard.live.fragment import SharedPart
from dashboard.locks import activity, attribution, rows, signals
from dashboard.locks.attribution import RUNNING
from dashboard.locks.history import DEADLOCKS, WAITS, look_back
from tasks.admin.forms import OptionField, PreviewedForm, WholeNumberField
from tasks.admin.rights import missing, require, who
from tasks.commands import types
from tasks.diagnosis.finding import command
from tasks.locking import rowlocks
from tasks.locking.named import postgres
from tasks.operations.filters import BIGGEST_ID
from tasks.support import reading
from tasks.support.database import is_lock_not_available, sqlstate
from tasks.support.durations import spoken

SEE, SIGNAL = "dashboard.view_backend", "dashboard.signal_backend"
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
        minutes = reading.digits(around)
        chosen = minutes if minutes in AROUND else USUAL
        at = parsed(written) if written else timezone.now()
        if at is None:
            problem = _("“%(text)s” is no time like 2026-11-21 03:10; this is now.") % {"text": written[:50]}
            return cls(timezone.now(), chosen, problem=problem)
        below = reading.digits(before)
        return cls(at, chosen, below if below is not None and below <= BIGGEST_ID else None)

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


def parsed(text: str) -> datetime | None:
    """Parse a time as people and the form write it; None for anything else."""
    try:
        at = parse_datetime(text)
    except ValueError:
        at = None
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


class SignalForm(PreviewedForm):
    """A person's request for one backend, as the page showed it."""

    pid = WholeNumberField(min_value=0, max_value=LARGEST_PID)
    started = OptionField(types.moment, required=True)
    action = forms.ChoiceField(choices=[(action, action) for action in signals.ACTIONS])


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
    page = attribution.lock_page(snapshots.of(request))
    cannot_signal = missing(request.user, SIGNAL)
    longest = page.longest_wait
    return {
        "look": page,
        "longest_wait": "" if longest is None else _(", the longest for %(age)s") % {"age": spoken(longest)},
        "tree": rows.tree_rows(page.lines, page.behind, may_signal=not cannot_signal),
        "rows": page.held[:MOST_ROWS],
        "sessions": rows.session_rows(page, MOST_SESSIONS, may_signal=not cannot_signal),
        "more_sessions": max(0, len(page.seen.sessions) - MOST_SESSIONS),
        "cannot_signal": cannot_signal,
        "statements": STATEMENTS,
    }


LIVE = SharedPart("dashboard/_locks.html", live_context, every=2)


@require_POST
def signal(request: HttpRequest) -> HttpResponse:
    """First preview the effects, then send the signal."""
    require(request.user, SIGNAL)
    values = SignalForm.read(request.POST)
    if values is None:
        return render(request, "dashboard/signal.html", admin.site.each_context(request), status=400)
    lacks_reason = values["action"] == "terminate" and not values["reason"]
    if not values["confirmed"] or lacks_reason:
        return preview(request, values)
    pid = values["pid"]
    try:
        person = who(request.user)
        signalled = signals.signal(pid, values["started"], values["action"], person, reason=values["reason"])
    except signals.AlreadySignalled as problem:
        messages.info(request, str(problem))
    except signals.NotSignalled as problem:
        messages.error(request, str(problem))
    except signals.NotAudited as problem:
        messages.warning(request, str(problem))
    except DatabaseError as error:
        messages.error(request, refusal(error, pid))
    else:
        text = _("Backend %(pid)d was signalled.") if signalled else _("Backend %(pid)d ended by itself meanwhile.")
        messages.success(request, text % {"pid": pid})
    snapshots.forget()
    return redirect("admin:ops_locks")


def preview(request: HttpRequest, values: dict[str, Any]) -> HttpResponse:
    action, started = values["action"], values["started"]
    is_terminate = action == "terminate"
    expected = signals.foresee(values["pid"], started)
    reason = ("--reason", values["reason"] or "…") if is_terminate or values["reason"] else ()
    context = {
        "title": _("End this session?") if is_terminate else _("Cancel this query?"),
        "asked": {**values, "command": signals.shell(values["pid"], started, action, *reason)},
        "expected": expected,
        "session": expected.session,
        "work": rows.work_of(expected.work),
        "undoing": signals.undone_work(expected.session, action) if expected.session else "",
        "task_fate": signals.consequence_for_task(expected.work.task) if expected.work.task else "",
        "fault": _("Ending a session needs a reason, which the audit keeps.") if values["confirmed"] else "",
    }
    status = 409 if expected.problem else 200
    return render(request, "dashboard/signal.html", {**admin.site.each_context(request), **context}, status=status)


def refusal(error: DatabaseError, pid: int) -> str:
    """Explain the server's refusal; other errors are raised again."""
    if is_lock_not_available(error):
        return _("Another person is signalling backend %(pid)d now; reload the page.") % {"pid": pid}
    if sqlstate(error) != signals.INSUFFICIENT_PRIVILEGE:
        raise error
    return signals.missing_grant(pid)
