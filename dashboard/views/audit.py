"""The audit page: interventions (who did what to which row, when and why), filtered, newest first.

It searches like the list of tasks: by windows of ids, for two seconds at most. Target and actor have indexes. An
action has none: it is found among the latest entries, or by scanning the actor's. Enqueues are folded away.
"""

import csv
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Any, Self
from urllib.parse import urlencode

from django.db import connection
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.functional import cached_property
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_safe

from dashboard.layout import page
from dashboard.live.fragment import SharedPart
from dashboard.task_pages.listing import at_of, neighbours
from dashboard.templatetags.rowlock import age, target_href, written
from tasks.admin.rights import require
from tasks.models import Intervention
from tasks.models.run import IS_ENQUEUE
from tasks.operations.filters import BIGGEST_ID, InvalidFilter, Params, given, parse_moment
from tasks.operations.search import Filter, Listing, PageCursor, find, table_bounds
from tasks.support import reading
from tasks.support.database import fetch

SEE = "tasks.view_intervention"
EVERY_SECONDS = 5
MOST_FOLDED = 1_000  # that are counted
MOST_IN_CSV = 1_000
TIMES = {"": gettext_lazy("All"), "1h": gettext_lazy("1 h"), "24h": gettext_lazy("24 h"), "7d": gettext_lazy("7 d")}
SOURCES = {"page": gettext_lazy("page"), "command": gettext_lazy("command"), "api": gettext_lazy("API")}
COLUMNS = ("actor", "source", "role", "action", "target", "version_before", "version_after", "reason")

# Ids grow roughly with time (open transactions blur the order). So a binary search finds the first id of a time.
SINCE_ID = """
WITH RECURSIVE halving (low, high) AS (
    SELECT min(id), max(id) + 1 FROM tasks_intervention
    UNION ALL
    SELECT CASE WHEN probe.is_before THEN middle.id + 1 ELSE low END,
        CASE WHEN probe.is_before THEN high ELSE middle.id END
    FROM halving, LATERAL (SELECT (low + high) / 2 AS id) AS middle, LATERAL (
        SELECT at < %(since)s::timestamptz - interval '1 hour' AS is_before FROM tasks_intervention AS entry
        WHERE entry.id >= middle.id ORDER BY entry.id LIMIT 1) AS probe
    WHERE low < high
)
SELECT low AS id FROM halving WHERE low >= high LIMIT 1
"""
UNORDERED = timedelta(hours=1)  # as in SINCE_ID
RECENT = """
SELECT array_agg(DISTINCT actor) AS actors, array_agg(DISTINCT split_part(action, ' ', 1)) AS verbs
FROM (SELECT actor, action FROM tasks_intervention ORDER BY id DESC LIMIT 1000) AS latest
"""
HERE = "SELECT statement_timestamp() AS now, session_user::text AS role"


@dataclass(frozen=True, kw_only=True)
class AuditFilter:
    """Conditions that an intervention must meet.

    `action`: its verb. `since`, `until`: an age like 7d, or a time. `enqueues`: "1" shows them, else they are folded.
    """

    actor: str = ""
    action: str = ""
    target: str = ""
    since: str = ""
    until: str = ""
    enqueues: str = ""

    @classmethod
    def from_params(cls, params: Params) -> Self:
        """Read a URL's query, with the fields as parameters. Raises InvalidFilter.

        `#4711` and `4711` mean a task; any other target is as the audit writes it.
        """
        values = {field.name: next(iter(given(params, field.name)), "").strip() for field in fields(cls)}
        number = reading.digits(values["target"].removeprefix("#"))
        if number is not None and 1 <= number <= BIGGEST_ID:
            values["target"] = f"task:{number}"
        parse_moment(values["since"]), parse_moment(values["until"])
        return cls(**values)

    def as_params(self) -> list[tuple[str, str]]:
        return [(name, value) for name, value in asdict(self).items() if value]

    @property
    def is_empty(self) -> bool:
        return self == type(self)()

    @property
    def is_quick(self) -> bool:
        """True if an index finds the matches, however old they are."""
        return bool(self.target) or not (self.action or self.since or self.until)

    @property
    def is_folded(self) -> bool:
        """True if enqueues are left out: one action, or the history of one thing, is shown whole."""
        return not (self.enqueues or self.action or self.target)

    @cached_property
    def since_at(self) -> datetime | None:
        """The time that `since` means, by the database's clock."""
        return at_of(self.since)

    @cached_property
    def until_at(self) -> datetime | None:
        return at_of(self.until)

    def queryset(self) -> QuerySet[Intervention]:
        entries = Intervention.objects.all()
        if self.actor:
            entries = entries.filter(actor=self.actor)
        if self.action:
            entries = entries.filter(Q(action=self.action) | Q(action__startswith=f"{self.action} "))
        if self.target:
            entries = entries.filter(target=self.target)
        if self.since_at is not None:
            entries = entries.filter(at__gte=self.since_at)
        if self.until_at is not None:
            entries = entries.filter(at__lt=self.until_at)
        return entries.filter(~IS_ENQUEUE) if self.is_folded else entries

    def shows(self, entry: Any, /) -> bool:
        return True


def bounds(chosen: Filter) -> tuple[int, int]:
    """The ids between which interventions can match: those of the filter's time."""
    since, until = getattr(chosen, "since_at", None), getattr(chosen, "until_at", None)
    lowest, highest = table_bounds(chosen)
    if since is not None:
        lowest = first_id(since, lowest)
    if until is not None:
        highest = min(highest, first_id(until + 2 * UNORDERED, lowest))
    return (lowest, highest) if highest >= lowest else (0, -1)


def first_id(at: datetime, otherwise: int) -> int:
    """The lowest id that an entry of this time, or a later one, can have."""
    found = fetch(connection, SINCE_ID, {"since": at})
    return found[0]["id"] if found else otherwise


def here() -> dict[str, Any]:
    """The database's time, and the role of this session."""
    return fetch(connection, HERE)[0]


def paths(view: Callable[..., Any]) -> list[URLPattern]:
    return [path("ops/audit/", view(audit), name="ops_audit")]


@require_safe
def audit(request: HttpRequest) -> HttpResponse:
    """The page; for htmx only its live fragment; with `format=csv` the rows as a file."""
    require(request.user, SEE)
    try:
        chosen, cursor = AuditFilter.from_params(request.GET), PageCursor.from_params(request.GET)
    except InvalidFilter as error:
        context = {"fault": str(error), **form_context(AuditFilter())}
        return page(request, "dashboard/audit.html", _("Audit"), context, status=400)
    if request.GET.get("format") == "csv":
        return as_csv(find(chosen, cursor, bounds=bounds, limit=MOST_IN_CSV).rows)

    def found(_request: HttpRequest) -> dict[str, Any]:
        return entries(chosen, cursor)

    live = SharedPart("dashboard/_audit.html", found, every=EVERY_SECONDS, is_apart=True)
    if "HX-Request" in request.headers:
        return live.answer(request)
    context = {"every": EVERY_SECONDS, **form_context(chosen), **entries(chosen, cursor)}
    if context["is_live"]:
        live.expect(request)
    return page(request, "dashboard/audit.html", _("Audit"), context)


def form_context(chosen: AuditFilter) -> dict[str, Any]:
    """The search line: what it says, and actors and verbs of the latest entries to offer."""
    recent = {name: sorted(words or ()) for name, words in fetch(connection, RECENT)[0].items()}
    times = [
        (label, query(chosen, since=since, until=""), (chosen.since, chosen.until) == (since, ""))
        for since, label in TIMES.items()
    ]
    return {"chosen": chosen, "recent": recent, "times": times, "csv": query(chosen) + "&format=csv"}


def query(chosen: AuditFilter, **changed: str) -> str:
    return "?" + urlencode(replace(chosen, **changed).as_params())


def as_csv(rows: Sequence[Intervention]) -> HttpResponse:
    """The entries as a file for a spreadsheet, in which no text is a formula."""
    answer = HttpResponse(content_type="text/csv; charset=utf-8")
    answer["Content-Disposition"] = 'attachment; filename="audit.csv"'
    writer = csv.writer(answer)
    writer.writerow(("at", *COLUMNS))
    for row in rows:
        texts = ["" if value is None else str(value) for value in (getattr(row, name) for name in COLUMNS)]
        writer.writerow([row.at.isoformat(), *map(reading.cell, texts)])
    return answer


@dataclass(frozen=True, kw_only=True)
class EntryRow:
    """One line of the page. `role`: the database role, if it is not the page's own."""

    id: str
    at: str
    age: SafeString | str
    actor: str
    source: str
    role: str
    action: str
    target: str
    href: str
    versions: str
    reason: str

    @classmethod
    def of(cls, entry: Intervention, now: datetime, our_role: str) -> Self:
        versions = [f"v{version}" for version in (entry.version_before, entry.version_after) if version is not None]
        return cls(
            id=str(entry.pk),
            at=written(entry.at).removesuffix(" UTC"),
            age=age(entry.at, now),
            actor=entry.actor,
            source=str(SOURCES.get(entry.source, entry.source)),
            role=entry.role if entry.role != our_role else "",
            action=entry.action,
            target=entry.target,
            href=target_href(entry.target),
            versions=" → ".join(versions),
            reason=entry.reason,
        )


def entries(chosen: AuditFilter, cursor: PageCursor) -> dict[str, Any]:
    """One page of interventions. It refreshes only if an index finds the matches."""
    listing, session = find(chosen, cursor, bounds=bounds), here()
    folded = folded_beside(chosen, cursor, listing) if chosen.is_folded else 0
    return {
        "chosen": chosen,
        "listing": listing,
        "entries": [EntryRow.of(entry, session["now"], session["role"]) for entry in listing.rows],
        "links": neighbours(chosen, listing),
        "folded": min(folded, MOST_FOLDED),
        "is_more_folded": folded > MOST_FOLDED,
        "unfold": query(chosen, enqueues="1"),
        "fold": query(chosen, enqueues=""),
        "is_live": cursor == PageCursor() and chosen.is_quick,
    }


def folded_beside(chosen: AuditFilter, cursor: PageCursor, listing: Listing) -> int:
    """The enqueues among the entries of this page, at most one more than MOST_FOLDED."""
    enqueues = replace(chosen, enqueues="1").queryset().filter(IS_ENQUEUE)
    oldest = listing.looked_down_to or (listing.rows[-1].pk if listing.rows and listing.older else 0)
    newest = cursor.before or (listing.rows[0].pk + 1 if listing.rows and cursor.after else BIGGEST_ID)
    return len(enqueues.filter(pk__gte=oldest, pk__lt=newest).values_list("pk")[: MOST_FOLDED + 1])
