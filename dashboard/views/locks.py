"""The page of locks and sessions, and signals to a session."""

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import messages
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_POST, require_safe

from dashboard import links
from dashboard.layout import page
from dashboard.live import snapshots
from dashboard.live.fragment import SharedPart
from dashboard.locks import activity, attribution, rows, signals
from dashboard.locks.attribution import RUNNING
from dashboard.views import lock_history
from tasks.admin.forms import OptionField, PreviewedForm, WholeNumberField
from tasks.admin.rights import missing, require, who
from tasks.commands import types
from tasks.locking import rowlocks
from tasks.locking.named import postgres
from tasks.support import audit
from tasks.support.addresses import address
from tasks.support.database import is_lock_not_available, sqlstate
from tasks.support.durations import spoken

SEE, SIGNAL = "dashboard.view_backend", "dashboard.signal_backend"
LARGEST_PID = 2**31 - 1
MOST_ROWS = 50
MOST_SESSIONS = 50  # beside the tree, those with the oldest transaction first; and as many idle ones
# "SQL behind this": the statements of the page, as sent.
STATEMENTS = [
    text.strip()
    for text in (
        activity.LOCKS, postgres.WAITERS, postgres.HOLDERS, rowlocks.LOCKERS, activity.SESSIONS, RUNNING
    )
]  # fmt: skip


class SignalForm(PreviewedForm):
    """A person's request for one backend, as the page showed it."""

    pid = WholeNumberField(min_value=0, max_value=LARGEST_PID)
    started = OptionField(types.moment, required=True)
    action = forms.ChoiceField(choices=[(action, action) for action in signals.ACTIONS])


def paths(view: Callable[..., Any]) -> list[URLPattern]:
    return [
        path("ops/locks/", view(locks), name="ops_locks"),
        path("ops/locks/signal/", view(signal), name="ops_signal"),
        *lock_history.paths(view),
    ]


@require_safe
def locks(request: HttpRequest) -> HttpResponse:
    """The page; for htmx only its live fragment."""
    require(request.user, SEE)
    if request.headers.get("HX-Request"):
        return LIVE.answer(request)
    return page(request, "dashboard/locks.html", _("Database locks"), {"panel": LIVE.text(request)})


def live_context(request: HttpRequest) -> dict[str, Any]:
    seen = attribution.lock_page(snapshots.of(request))
    longest, busy = seen.longest_wait, rows.busy_sessions(seen)
    return {
        "look": seen,
        "longest_wait": "" if longest is None else f"· {spoken(longest)}",
        "tree": rows.tree_rows(seen.lines, seen.behind, may_signal=True),
        "rows": seen.held[:MOST_ROWS],
        "sessions": [rows.session_row(session, seen) for session in busy[:MOST_SESSIONS]],
        "more_sessions": max(0, len(busy) - MOST_SESSIONS),
        "idle": rows.idle_sessions(seen, MOST_SESSIONS),
        "cannot_signal": missing(request.user, SIGNAL),
        "statements": STATEMENTS,
    }


LIVE = SharedPart("dashboard/_locks.html", live_context, every=2)


@require_POST
def signal(request: HttpRequest) -> HttpResponse:
    """First preview the effects, then send the signal."""
    require(request.user, SIGNAL)
    values = SignalForm.read(request.POST)
    if values is None:
        return page(request, "dashboard/signal.html", "", {}, status=400)
    back = links.back_to(request, address("admin:ops_locks"))
    lacks_reason = values["action"] == "terminate" and not values["reason"]
    if not values["confirmed"] or lacks_reason:
        return preview(request, values, back)
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
        text = _("Backend %(pid)s was signalled.") if signalled else _("Backend %(pid)s ended by itself meanwhile.")
        messages.success(request, links.sentence(text, pid=links.history(audit.backend(pid), str(pid))))
    snapshots.forget()
    return redirect(back)


def preview(request: HttpRequest, values: dict[str, Any], back: str) -> HttpResponse:
    action, started = values["action"], values["started"]
    is_terminate = action == "terminate"
    expected = signals.foresee(values["pid"], started)
    if is_terminate and not values["confirmed"]:
        values["reason"] = values["reason"] or reason_for(expected)
    reason = ("--reason", values["reason"] or "…") if is_terminate or values["reason"] else ()
    context = {
        "asked": {**values, "command": signals.shell(values["pid"], started, action, *reason)},
        "is_terminate": is_terminate,
        "expected": expected,
        "next": back,
        "session": expected.session,
        "work": rows.work_of(expected.work),
        "undoing": signals.undone_work(expected.session, action) if expected.session else "",
        "task_fate": signals.consequence_for_task(expected.work.task) if expected.work.task else "",
        "fault": _("This needs a reason, which the audit keeps.") if values["confirmed"] else "",
    }
    title = _("End this session?") if is_terminate else _("Cancel this query?")
    return page(request, "dashboard/signal.html", title, context, status=409 if expected.problem else 200)


def reason_for(expected: signals.Consequences) -> str:
    """A reason to begin with: the number of sessions that wait for this one. Empty if none does."""
    number = len(expected.at_once) + len(expected.later)
    if not number:
        return ""
    return ngettext("blocks %(number)d session", "blocks %(number)d sessions", number) % {"number": number}


def refusal(error: DatabaseError, pid: int) -> str:
    """Explain the server's refusal; other errors are raised again."""
    if is_lock_not_available(error):
        return _("Another person is signalling backend %(pid)d now; reload the page.") % {"pid": pid}
    if sqlstate(error) != signals.INSUFFICIENT_PRIVILEGE:
        raise error
    return signals.missing_grant(pid)
