"""The lock history: a time line of blocked sessions, and the tree and the waits of the moment chosen on it."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_safe

from dashboard.layout import page
from dashboard.locks import rows
from dashboard.locks.history import BLOCKED, DEADLOCKS, WAITS, blocked_over, latest_sample, look_back
from tasks.admin.rights import require
from tasks.diagnosis.finding import command
from tasks.operations.filters import BIGGEST_ID
from tasks.support import reading

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
TICKS = 5


class Span(NamedTuple):
    """A length of the time line, and the step in which a key moves on it."""

    label: Promise
    length: timedelta
    step: timedelta


SPANS = {
    "1h": Span(gettext_lazy("1 h"), timedelta(hours=1), timedelta(seconds=10)),
    "24h": Span(gettext_lazy("24 h"), timedelta(days=1), timedelta(minutes=1)),
    "7d": Span(gettext_lazy("7 d"), timedelta(days=7), timedelta(minutes=10)),
}


@dataclass(frozen=True)
class Moment:
    """The requested time on its time line, minutes around it, and the id below which the list of waits continues.

    `since`: the start of the time line.
    """

    at: datetime
    span: str
    since: datetime
    around: int
    before: int | None = None
    problem: str = ""

    @classmethod
    def of(cls, request: HttpRequest) -> "Moment":
        """Read the query; times are UTC unless they say otherwise. Without a time it is that of the latest wait.

        An unreadable time becomes now, with `problem` set.
        """
        written, span, since, around, before, place = (
            request.GET.get(key, "").strip() for key in ("at", "span", "since", "around", "before", "place")
        )
        now, start, seconds = timezone.now(), parsed(since), reading.digits(place)
        problem = ""
        if start and seconds is not None:
            at = moved(start, seconds)
        else:
            at = parsed(written) if written else latest_sample() or now
        if at is None:
            problem = _("“%(text)s” is no time like 2026-11-21 03:10; this is now.") % {"text": written[:50]}
            at, start = now, None
        minutes, below = reading.digits(around), reading.digits(before)
        chosen = span if span in SPANS else "7d" if timedelta(days=1) < now - at <= timedelta(days=7) else "24h"
        if start is None or not start <= at <= start + SPANS[chosen].length:
            start = start_of(at, SPANS[chosen], now)
        return cls(
            min(at, now) if seconds is not None else at,
            chosen,
            start,
            minutes if minutes in AROUND else USUAL,
            below if below is not None and below <= BIGGEST_ID else None,
            problem,
        )

    @property
    def until(self) -> datetime:
        """The end of the time line."""
        return self.since + SPANS[self.span].length

    @property
    def place(self) -> int:
        """The position on the time line, in seconds."""
        return int((self.at - self.since).total_seconds())

    @property
    def length(self) -> int:
        return int(SPANS[self.span].length.total_seconds())

    @property
    def step(self) -> int:
        return int(SPANS[self.span].step.total_seconds())

    @property
    def ticks(self) -> list[datetime]:
        """The times to write under the line."""
        return [self.since + number * SPANS[self.span].length / (TICKS - 1) for number in range(TICKS)]

    @property
    def query(self) -> str:
        return urlencode({"at": self.at.isoformat(), "span": self.span, "around": self.around})

    @property
    def command(self) -> str:
        at = f"{self.at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
        return command("show_lock_history", "--at", at, "--around", f"{self.around}m")

    @property
    def written(self) -> str:
        """In the format of the form's field, in UTC."""
        return f"{self.at.astimezone(UTC):%Y-%m-%dT%H:%M}"


def start_of(at: datetime, span: Span, now: datetime) -> datetime:
    """The start of a time line that ends now, or around an older moment; whole steps, so that a key meets 03:10."""
    end = now if at >= now - span.length else at + span.length / 2
    steps = -((OLDEST - end) // span.step)
    return OLDEST + steps * span.step - span.length


def moved(start: datetime, seconds: int) -> datetime | None:
    """The time so many seconds later; None if it is out of range."""
    return start + timedelta(seconds=seconds) if seconds <= SPANS["7d"].length.total_seconds() else None


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


def paths(view: Callable[..., Any]) -> list[URLPattern]:
    return [path("ops/locks/history/", view(history), name="ops_lock_history")]


@require_safe
def history(request: HttpRequest) -> HttpResponse:
    """The page; for the script of its time line only the part about the moment."""
    require(request.user, SEE_HISTORY)
    moment = Moment.of(request)
    past = look_back(moment.at, timedelta(minutes=moment.around), before=moment.before)
    context = {
        "moment": moment,
        "past": past,
        "tree": rows.tree_rows(past.tree, {}, may_signal=False),
        "waits": [rows.past_wait(wait) for wait in past.waits],
    }
    if "HX-Request" in request.headers:
        return render(request, "dashboard/_past.html", context)
    context |= {
        "choices": AROUND.items(),
        "spans": [(key, span.label) for key, span in SPANS.items()],
        "blocked": blocked_over(moment.since, moment.until),
        "statements": [text.strip() for text in (BLOCKED, WAITS, DEADLOCKS)],
    }
    return page(request, "dashboard/lock_history.html", _("Database locks"), context)
