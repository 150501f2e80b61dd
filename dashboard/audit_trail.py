"""The audit page: interventions (who did what to which row, when and why), filtered, newest first.

It searches like the list of tasks: by windows of ids, for two seconds at most. Target and actor have indexes. An
action has none: it is found among the latest entries, or by scanning the actor's.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Self

from django.db import connection
from django.db.models import Q, QuerySet
from django.utils.dateparse import parse_datetime
from django.utils.functional import cached_property

from dashboard.task_pages.listing import Listing, PageCursor, Search, find
from tasks.models import Intervention
from tasks.operations.filters import BIGGEST_ID, InvalidFilter, Params, given
from tasks.support import durations, reading
from tasks.support.database import fetch

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
        """Read `actor`, `action`, `target` and `since` from a URL's query. Raises InvalidFilter."""
        values = {name: next(iter(given(params, name)), "").strip() for name in ("actor", "action", "target", "since")}
        values["target"] = whole_target(values["target"])
        parse_since(values["since"])
        return cls(**values)

    def as_params(self) -> list[tuple[str, str]]:
        pairs = [("actor", self.actor), ("action", self.action), ("target", self.target), ("since", self.since)]
        return [(name, value) for name, value in pairs if value]

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
        if meant is None or isinstance(meant, datetime):
            return meant
        return here().now - meant

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


class Here(NamedTuple):
    """The database's time, and the role of this session."""

    now: datetime
    role: str


def here() -> Here:
    return Here(**fetch(connection, HERE)[0])


class Recent(NamedTuple):
    """Actors and verbs that filters can offer, sorted."""

    actors: list[str]
    verbs: list[str]


def whole_target(text: str) -> str:
    """`#4711` and `4711` mean a task; anything else is already a target as the audit writes it."""
    number = reading.digits(text.removeprefix("#"))
    return text if number is None or not 1 <= number <= BIGGEST_ID else f"task:{number}"


def parse_since(text: str) -> Any:
    """Parse a timedelta or a datetime, or None from an empty text. Raises InvalidFilter with examples."""
    if not text:
        return None
    try:
        at = parse_datetime(text)
        if at is not None and at.tzinfo is not None:
            return at
        return durations.parse(text)
    except ValueError as error:
        raise InvalidFilter(
            f"{text!r} is neither an age, like 12h or 7d, nor a time, like 2026-11-20T03:10Z."
        ) from error


class Walk(Search):
    """The search of the tasks' list, but not further back than `since`."""

    @cached_property
    def bounds(self) -> tuple[int, int]:
        since = getattr(self.chosen, "since_at", None)
        if since is None:
            return super().bounds
        found = fetch(connection, SINCE_ID, {"since": since})
        highest = fetch(connection, HIGHEST_ID)[0]["id"]
        return (found[0]["id"], highest) if found and highest is not None else (0, -1)


def look(chosen: AuditFilter, place: PageCursor) -> Listing:
    """One page of the matching interventions, newest first."""
    return find(chosen, place, search_class=Walk)


def recent() -> Recent:
    """The actors and verbs of the latest thousand entries, to offer as filters."""
    row = fetch(connection, RECENT)[0]
    return Recent(sorted(row["actors"] or ()), sorted(row["verbs"] or ()))
