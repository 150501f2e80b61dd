"""Search a large table by windows of ids, newest first, within a time limit."""

import time
from dataclasses import dataclass
from typing import Any, Protocol, Self

from django.db import OperationalError, connection
from django.db.models import Max, Min, QuerySet
from django.db.transaction import atomic
from django.utils.functional import cached_property

from tasks.models import Task
from tasks.operations.filters import InvalidFilter
from tasks.operations.filters import Params
from tasks.operations.filters import given
from tasks.operations.filters import parse_id
from tasks.support.database import fetch

PAGE = 50
FIRST_WINDOW = 20_000  # ids
WINDOW_GROWTH = 4
SEARCH_SECONDS = 2.0
QUERY_CANCELED = "57014"

# Ids grow with the time of creation, except for open transactions. So bisection finds the first id of a time, and a
# search for old tasks skips millions of newer ones.
CREATED_ID = """
WITH RECURSIVE halving (low, high) AS (
    SELECT %(lowest)s::bigint, %(highest)s::bigint + 1
    UNION ALL
    SELECT CASE WHEN probe.is_before THEN middle.id + 1 ELSE low END,
        CASE WHEN probe.is_before THEN high ELSE middle.id END
    FROM halving, LATERAL (SELECT (low + high) / 2 AS id) AS middle, LATERAL (
        SELECT created_at < statement_timestamp() - %(age)s::interval + interval '1 hour' AS is_before
        FROM tasks_task AS task WHERE task.id >= middle.id ORDER BY task.id LIMIT 1) AS probe
    WHERE low < high
)
SELECT low AS id FROM halving WHERE low >= high LIMIT 1
"""

LIMIT_STATEMENT = "SELECT set_config('statement_timeout', %(milliseconds)s::text, true)"

# A loose index scan over the claim's index, and two small tables.
QUEUE_NAMES = """
WITH RECURSIVE waiting (name) AS (
    (SELECT queue_name FROM tasks_task WHERE status = 'READY' AND ordering_key IS NULL ORDER BY queue_name LIMIT 1)
    UNION ALL
    SELECT (SELECT task.queue_name FROM tasks_task AS task
            WHERE task.status = 'READY' AND task.ordering_key IS NULL AND task.queue_name > waiting.name
            ORDER BY task.queue_name LIMIT 1)
    FROM waiting WHERE waiting.name IS NOT NULL
), known (name) AS (
    SELECT name FROM waiting
    UNION
    SELECT name FROM tasks_queue
    UNION
    SELECT unnest(queues) FROM tasks_worker WHERE stopped_at IS NULL
)
SELECT name FROM known WHERE name IS NOT NULL ORDER BY name LIMIT 200
"""


@dataclass(frozen=True)
class Listing:
    """One page of tasks, newest first.

    `newer`, `older`: the id above or below which the next page lies, None without one. `looked_down_to`: the id at
    which the time ran out, None when the search is complete.
    """

    tasks: list[Task]
    newer: int | None = None
    older: int | None = None
    looked_down_to: int | None = None


@dataclass(frozen=True)
class Place:
    """The position of a page: below the id `before`, above the id `after`, or at the newest."""

    before: int | None = None
    after: int | None = None

    @classmethod
    def from_params(cls, params: Params) -> Self:
        """Read `before` and `after`. Raises InvalidFilter."""
        places = {name: next((parse_id(text) for text in given(params, name)), None) for name in ("before", "after")}
        if None not in places.values():
            raise InvalidFilter("A page lies `before` an id or `after` one: remove either.")
        return cls(**places)


class Chosen(Protocol):
    """The subject of a search: rows of a table with a growing numeric key, and which of them are shown."""

    def queryset(self) -> QuerySet[Any]: ...

    def shows(self, row: Any, /) -> bool: ...


def find(
    chosen: Chosen,
    place: Place,
    *,
    limit: int = PAGE,
    seconds: float | None = None,
    search_class: "type[Search] | None" = None,
) -> Listing:
    """One page of the rows that match; takes about `seconds` at most (None: SEARCH_SECONDS)."""
    search = (search_class or TaskSearch)(chosen, limit + 1, SEARCH_SECONDS if seconds is None else seconds)
    if place.after is not None:
        found = search.upwards(place.after)
        tasks = found[:limit][::-1]
        newer = tasks[0].pk if tasks and (len(found) > limit or search.stopped_at) else None
        return Listing(tasks, newer=newer, older=tasks[-1].pk if tasks else place.after + 1)
    found = search.downwards(place.before)
    tasks = found[:limit]
    older = tasks[-1].pk if len(found) > limit else search.stopped_at
    newer = tasks[0].pk if place.before and tasks else None
    return Listing(tasks, newer=newer, older=older, looked_down_to=search.stopped_at)


class Search:
    """A walk through windows of ids, in one direction, with a time limit."""

    def __init__(self, chosen: Chosen, wanted: int, seconds: float) -> None:
        self.chosen = chosen
        self.wanted = wanted
        self.deadline = time.monotonic() + seconds
        self.stopped_at: int | None = None  # the id reached when the time ran out

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """The lowest and the highest id, (0, -1) in an empty table."""
        table = self.chosen.queryset().model._default_manager
        found = table.aggregate(lowest=Min("pk"), highest=Max("pk"))
        return (0, -1) if found["lowest"] is None else (found["lowest"], found["highest"])

    def downwards(self, before: int | None) -> list[Any]:
        """The newest matches below `before` (None: all), newest first."""
        lowest, highest = self.bounds
        top = highest + 1 if before is None else min(before, highest + 1)
        return self._walk(top, lowest, -1)

    def upwards(self, after: int) -> list[Any]:
        """The oldest matches above `after`, oldest first."""
        lowest, highest = self.bounds
        return self._walk(max(after, lowest - 1), highest, +1)

    def _walk(self, place: int, end: int, direction: int) -> list[Any]:
        found: list[Any] = []
        window = FIRST_WINDOW
        while len(found) < self.wanted and (end - place) * direction > 0:
            rows = self._window(place, place + window * direction, direction)
            if rows is None:
                self.stopped_at = place
                break
            found += [task for task in rows if self.chosen.shows(task)]
            is_full = len(rows) == self.wanted
            place = rows[-1].pk if is_full else place + window * direction
            window *= WINDOW_GROWTH
        return found[: self.wanted]

    def _window(self, place: int, end: int, direction: int) -> list[Any] | None:
        """The matches beyond `place`, up to and including `end`, in walking order; None when the time is over."""
        limits = {"pk__lt": place, "pk__gte": end} if direction < 0 else {"pk__gt": place, "pk__lte": end}
        matches = self.chosen.queryset().filter(**limits).order_by("-pk" if direction < 0 else "pk")
        milliseconds = int(1000 * (self.deadline - time.monotonic()))
        if milliseconds <= 0:
            return None
        try:
            with atomic(), connection.cursor() as cursor:
                cursor.execute(LIMIT_STATEMENT, {"milliseconds": str(milliseconds)})
                return list(matches[: self.wanted])
        except OperationalError as error:
            if getattr(error.__cause__, "sqlstate", None) != QUERY_CANCELED:
                raise
            return None


class TaskSearch(Search):
    """A search that skips tasks younger than the filter's age."""

    @cached_property
    def bounds(self) -> tuple[int, int]:
        lowest, highest = super().bounds
        age = getattr(self.chosen, "older_than", None)
        if age is None or highest < lowest:
            return lowest, highest
        params = {"lowest": lowest, "highest": highest, "age": age}
        found = fetch(connection, CREATED_ID, params)
        return lowest, min(highest, found[0]["id"]) if found else highest


def known_queues() -> list[str]:
    """Names of queues to choose from: of waiting tasks, of settings and of workers."""
    return [row["name"] for row in fetch(connection, QUEUE_NAMES)]
