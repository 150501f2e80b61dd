"""The audit page: interventions (who did what to which row, when and why), filtered, newest first.

It searches like the list of tasks: by windows of ids, for two seconds at most. Target and actor have indexes. An
action has none: it is found among the latest entries, or by scanning the actor's.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Self

from django.db import connection
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.dateparse import parse_datetime
from django.utils.functional import cached_property
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from dashboard.live.fragment import SharedPart
from dashboard.site import page
from dashboard.task_pages.listing import Filter, PageCursor, find, neighbours, table_bounds
from tasks.admin.rights import require
from tasks.models import Intervention
from tasks.operations.filters import BIGGEST_ID, InvalidFilter, Params, given
from tasks.support import durations, reading
from tasks.support.database import fetch

SEE = "tasks.view_intervention"
EVERY_SECONDS = 5

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
RECENT = """
SELECT array_agg(DISTINCT actor) AS actors, array_agg(DISTINCT split_part(action, ' ', 1)) AS verbs
FROM (SELECT actor, action FROM tasks_intervention ORDER BY id DESC LIMIT 1000) AS latest
"""
HIGHEST_ID = "SELECT max(id) AS id FROM tasks_intervention"
HERE = "SELECT statement_timestamp() AS now, session_user::text AS role"


@dataclass(frozen=True, kw_only=True)
class AuditFilter:
    """Conditions that an intervention must meet. `action`: its verb; `since`: an age like 7d, or a time."""

    actor: str = ""
    action: str = ""
    target: str = ""
    since: str = ""

    @classmethod
    def from_params(cls, params: Params) -> Self:
        """Read `actor`, `action`, `target` and `since` from a URL's query. Raises InvalidFilter.

        `#4711` and `4711` mean a task; any other target is as the audit writes it.
        """
        values = {name: next(iter(given(params, name)), "").strip() for name in ("actor", "action", "target", "since")}
        number = reading.digits(values["target"].removeprefix("#"))
        if number is not None and 1 <= number <= BIGGEST_ID:
            values["target"] = f"task:{number}"
        parse_since(values["since"])
        return cls(**values)

    def as_params(self) -> list[tuple[str, str]]:
        return [(name, value) for name, value in asdict(self).items() if value]

    @property
    def is_empty(self) -> bool:
        return self == type(self)()

    @property
    def is_quick(self) -> bool:
        """True if an index finds the matches, however old they are."""
        return self.is_empty or bool(self.target) or self == type(self)(actor=self.actor)

    @cached_property
    def since_at(self) -> datetime | None:
        """The time that `since` means, by the database's clock."""
        meant = parse_since(self.since)
        if isinstance(meant, timedelta):
            now: datetime = here()["now"]
            return now - meant
        return meant

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
        return entries

    def shows(self, entry: Any, /) -> bool:
        return True


def parse_since(text: str) -> datetime | timedelta | None:
    """Parse an age or a time, or None from an empty text. Raises InvalidFilter with examples."""
    if not text:
        return None
    try:
        at = parse_datetime(text)
        return at if at is not None and at.tzinfo is not None else durations.parse(text)
    except ValueError as error:
        raise InvalidFilter(
            f"{text!r} is neither an age, like 12h or 7d, nor a time, like 2026-11-20T03:10Z."
        ) from error


def bounds(chosen: Filter) -> tuple[int, int]:
    """The ids between which interventions can match: none before the filter's time."""
    since = getattr(chosen, "since_at", None)
    if since is None:
        return table_bounds(chosen)
    found = fetch(connection, SINCE_ID, {"since": since})
    highest = fetch(connection, HIGHEST_ID)[0]["id"]
    return (found[0]["id"], highest) if found and highest is not None else (0, -1)


def here() -> dict[str, Any]:
    """The database's time, and the role of this session."""
    return fetch(connection, HERE)[0]


def paths(view: Callable[..., Any]) -> list[URLPattern]:
    return [path("ops/audit/", view(audit), name="ops_audit")]


@require_safe
def audit(request: HttpRequest) -> HttpResponse:
    """The page; for htmx only its live fragment."""
    require(request.user, SEE)
    try:
        chosen, cursor = AuditFilter.from_params(request.GET), PageCursor.from_params(request.GET)
    except InvalidFilter as error:
        context = {"fault": str(error), "chosen": AuditFilter(), "recent": recent()}
        return page(request, "dashboard/audit.html", _("Audit"), context, status=400)

    def found(_request: HttpRequest) -> dict[str, Any]:
        return entries(chosen, cursor)

    live = SharedPart("dashboard/_audit.html", found, every=EVERY_SECONDS, is_apart=True)
    if "HX-Request" in request.headers:
        return live.answer(request)
    context = {"every": EVERY_SECONDS, "recent": recent(), **entries(chosen, cursor)}
    if context["is_live"]:
        live.expect(request)
    return page(request, "dashboard/audit.html", _("Audit"), context)


def recent() -> dict[str, list[str]]:
    """Actors and verbs of the latest entries, to offer as filters."""
    return {name: sorted(words or ()) for name, words in fetch(connection, RECENT)[0].items()}


def entries(chosen: AuditFilter, cursor: PageCursor) -> dict[str, Any]:
    """One page of interventions. It refreshes only if an index finds the matches."""
    listing, session = find(chosen, cursor, bounds=bounds), here()
    return {
        "chosen": chosen,
        "listing": listing,
        "entries": listing.rows,
        "links": neighbours(chosen, listing),
        "now": session["now"],
        "our_role": session["role"],
        "is_live": cursor == PageCursor() and chosen.is_quick,
    }
