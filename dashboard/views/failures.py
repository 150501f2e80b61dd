"""The page of failures: kinds of unsuccessful attempts in a chosen time, and the attempts of one kind."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Self
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.functional import Promise
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_safe

from dashboard import links
from dashboard.attention import failures as lines
from dashboard.failures import (
    GROUPED,
    LAST,
    NUMBER,
    AttemptsOf,
    FailureFilter,
    Group,
    Kind,
    failed_groups,
    fingerprint_of,
    kinds,
)
from dashboard.layout import page
from dashboard.live import snapshots
from dashboard.live.fragment import SharedPart
from dashboard.numbers import decimal
from dashboard.task_pages.failure import message_of
from dashboard.task_pages.listing import known_queues, neighbours
from dashboard.templatetags.rowlock import age, between
from dashboard.views.overview import ACKNOWLEDGE, unless_slow
from tasks.admin import rights
from tasks.models import Attempt
from tasks.operations import Quarantine, Requeue
from tasks.operations.filters import InvalidFilter, TaskFilter, parse_failure
from tasks.operations.search import PageCursor, find, table_bounds
from tasks.panels import Snapshot

SEE = "tasks.view_task"


class Choice(NamedTuple):
    """One of the times to choose from. `every`: seconds between two refreshes."""

    since: str
    label: str | Promise
    every: float


TIMES = (
    Choice("1h", gettext_lazy("1 h"), 5),
    Choice("24h", gettext_lazy("24 h"), 15),
    Choice("7d", gettext_lazy("7 d"), 60),
)


class FailedNow(NamedTuple):
    """The FAILED tasks by the hash of their failure. `is_capped`: there may be more than were looked at."""

    groups: dict[str, Group]
    is_capped: bool

    @classmethod
    def of(cls, snapshot: Snapshot) -> Self:
        groups = snapshot.once(failed_groups)
        return cls({group.key: group for group in groups}, sum(group.number for group in groups) >= GROUPED)

    def written(self, group: Group | None) -> str:
        """The number for the page; without a group, a question mark if there may be some."""
        number = decimal(group.number) if group else ""
        return f"{number}+" if self.is_capped and number else number or "?"


@dataclass(frozen=True, kw_only=True)
class KindRow:
    """One line of the list. `failed`: its tasks that are FAILED now; `may_have_failed`: False if none are.

    `line`: the name to acknowledge, if there is one; `known`: who did. `tasks`, `function`: queries of the tasks to run
    again and to quarantine.
    """

    id: str
    url: str
    error: str
    place: str
    where: str
    task_path: str
    task_name: str
    message: str
    trend: tuple[int, ...]
    spark: str
    number: str
    failed: str
    may_have_failed: bool
    failed_url: str
    since: SafeString | str
    latest: SafeString | str
    releases: str
    task_id: str
    line: str
    known: str
    tasks: str
    function: str
    command: str

    @classmethod
    def of(cls, kind: Kind, found: "FailedNow", snapshot: Snapshot) -> Self:
        failed = found.groups.get(kind.key)
        peak = _("%(number)s attempts, at most %(most)s at once in 30 parts of the time")
        return cls(
            id=kind.key,
            url=kind.url,
            error=kind.error,
            place=kind.place,
            where=where(kind),
            task_path=kind.task_path,
            task_name=kind.task_path.rpartition(".")[2],
            message=message_of(kind.message).removeprefix(f"{kind.error}: "),
            trend=kind.trend,
            spark=peak % {"number": decimal(kind.number), "most": decimal(max(kind.trend))},
            number=decimal(kind.number),
            failed=found.written(failed),
            may_have_failed=bool(failed or found.is_capped),
            failed_url=links.listed(kind.tasks),
            since=age(kind.since, snapshot.now),
            latest=age(kind.latest, snapshot.now),
            releases=", ".join(kind.releases),
            task_id=str(kind.task_id),
            line=lines.line_of(failed).name if failed else "",
            known=lines.known_by(snapshot, failed) if failed else "",
            tasks=kind.tasks.as_query(),
            function=TaskFilter(task_paths=(kind.task_path,)).as_query(),
            command=lines.requeue_command(kind),
        )


def where(group: Group) -> str:
    """The place as short as it is clear: its file and function, and the task unless the function is the task."""
    task, place = group.task_path.rpartition(".")[2], group.place.rpartition("/")[2]
    return place if place.endswith(f":{task}") else f"{task} · {place}"


def paths(view: Callable[..., Any]) -> list[URLPattern]:
    return [
        path("ops/failures/", view(failures), name="ops_failures"),
        path("ops/failures/<str:key>/", view(failure), name="ops_failure"),
    ]


@require_safe
def failures(request: HttpRequest) -> HttpResponse:
    """The page; for htmx only its live fragment."""
    rights.require(request.user, SEE)
    try:
        chosen = FailureFilter.from_params(request.GET)
    except InvalidFilter as error:
        context = {"fault": str(error), **form_context(FailureFilter())}
        return page(request, "failures/list.html", _("Failures"), context, status=400)

    def rows(asked: HttpRequest) -> dict[str, Any]:
        return rows_context(chosen, asked)

    every = next((time.every for time in TIMES if time.since == chosen.since), TIMES[-1].every)
    live = SharedPart("failures/_kinds.html", rows, every, is_apart=True, seconds=every / 2)
    if "HX-Request" in request.headers:
        return live.answer(request)
    context = {**form_context(chosen), **missing_rights(request), "every": every, "panel": live.text(request)}
    return page(request, "failures/list.html", _("Failures"), context)


def form_context(chosen: FailureFilter) -> dict[str, Any]:
    times = [(time.label, query(chosen, since=time.since, until=""), is_now(chosen, time)) for time in TIMES]
    is_open = not any(is_here for *_, is_here in times)
    is_whole = chosen == FailureFilter()
    return {"chosen": chosen, "times": times, "is_open": is_open, "is_whole": is_whole, "queues": known_queues()}


def is_now(chosen: FailureFilter, time: Choice) -> bool:
    return (chosen.since, chosen.until) == (time.since, "")


def query(chosen: FailureFilter, **changed: str) -> str:
    return "?" + urlencode(chosen.as_params(**changed))


def missing_rights(request: HttpRequest) -> dict[str, Any]:
    """The right that this person lacks for each action, an empty text for who may; and the `forbidden` actions."""
    needed = {"requeue": Requeue.right, "quarantine": Quarantine.right, "acknowledge": ACKNOWLEDGE}
    missing = {name: rights.missing(request.user, right) for name, right in needed.items()}
    forbidden = tuple(name for name, text in missing.items() if text)
    return {"forbidden": forbidden, **{f"cannot_{name}": text for name, text in missing.items()}}


def rows_context(chosen: FailureFilter, request: HttpRequest) -> dict[str, Any]:
    """The kinds of failure in the chosen time; `rows` is None if they could not be counted in time."""
    snapshot = snapshots.of(request)
    found = unless_slow(snapshot, lambda: kinds(chosen))
    context = {
        **missing_rights(request),
        "chosen": chosen,
        "by_number": query(chosen, sort=NUMBER),
        "by_last": query(chosen, sort=LAST),
        "rows": None,
    }
    if found is None:
        return context
    failed = FailedNow.of(snapshot)
    rows = [KindRow.of(kind, failed, snapshot) for kind in found]
    hidden = found[0].total - len(found) if found else 0
    return {**context, "rows": rows, "hidden": hidden, "has_releases": any(row.releases for row in rows)}


@dataclass(frozen=True, kw_only=True)
class AttemptRow:
    """One attempt of a kind, in texts that the page prints as they are."""

    id: str
    task_id: str
    status: str
    number: str
    outcome: str
    worker_id: str
    worker_url: str
    finished: SafeString | str
    ran: str
    queue_name: str
    release: str
    message: str

    @classmethod
    def of(cls, attempt: Attempt, now: datetime) -> Self:
        return cls(
            id=str(attempt.pk),
            task_id=str(attempt.task_id),
            status=attempt.task.status,
            number=str(attempt.number),
            outcome=str(Attempt.Outcome(attempt.outcome).label),
            worker_id=attempt.worker_id,
            worker_url=links.worker(attempt.worker_id),
            finished=age(attempt.finished_at, now),
            ran=between(attempt.started_at, attempt.finished_at),
            queue_name=attempt.queue_name,
            release=attempt.release,
            message=message_of(attempt),
        )


@require_safe
def failure(request: HttpRequest, key: str) -> HttpResponse:
    """One kind: its latest attempt in full, and all its attempts, a page at a time."""
    rights.require(request.user, SEE)
    try:
        cursor, fingerprint = PageCursor.from_params(request.GET), fingerprint_of(parse_failure(key))
    except InvalidFilter as error:
        raise Http404(str(error)) from error
    if not fingerprint:
        raise Http404(_("No attempt failed in this way: its attempts were pruned, or the address is wrong."))
    chosen, snapshot = AttemptsOf(fingerprint), snapshots.of(request)
    listing = find(chosen, cursor, bounds=table_bounds)
    latest = chosen.queryset().latest("finished_at")
    found = unless_slow(snapshot, lambda: kinds(FailureFilter(since="7d", key=key)))
    kind = found[0] if found else quiet(latest, chosen.queryset().earliest("finished_at").finished_at)
    context = {
        **missing_rights(request),
        "row": KindRow.of(kind, FailedNow.of(snapshot), snapshot),
        "latest": latest,
        "listing": listing,
        "rows": [AttemptRow.of(attempt, snapshot.now) for attempt in listing.rows],
        "links": neighbours(chosen, listing),
    }
    return page(request, "failures/failure.html", message_of(latest), context)


def quiet(latest: Attempt, since: datetime) -> Kind:
    """A kind without an attempt in the last week."""
    return Kind(
        task_path=latest.task.task_path,
        exception_class=latest.exception_class,
        fingerprint=latest.fingerprint,
        number=0,
        since=since,
        latest=latest.finished_at,
        trend=(0,),
        releases=(latest.release,) if latest.release else (),
        task_id=latest.task_id,
        message=latest,
        total=1,
    )
