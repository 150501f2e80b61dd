"""The page of past lock waits."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_safe

from dashboard.locks import history as lock_history
from tasks import reading
from tasks.admin.rights import require
from tasks.filters import BIGGEST_ID
from tasks.verdicts.words import command

SEE = "dashboard.view_lockwait"
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


def paths(view: Callable[..., Any]) -> list[URLPattern]:
    return [path("ops/locks/history/", view(history), name="ops_lock_history")]


@require_safe
def history(request: HttpRequest) -> HttpResponse:
    require(request.user, SEE)
    moment = Moment.of(request)
    past = lock_history.look_back(moment.at, timedelta(minutes=moment.around), before=moment.before)
    context = {
        "title": _("Who blocked whom"),
        "moment": moment,
        "choices": AROUND.items(),
        "past": past,
        "statements": [lock_history.WAITS.strip(), lock_history.DEADLOCKS.strip()],
    }
    return render(request, "dashboard/lock_history.html", {**admin.site.each_context(request), **context})
