"""The search through a large table: one page of the rows that match a filter, within a time limit."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

from django.db import OperationalError, connection
from django.db.models import Max, QuerySet
from django.db.transaction import atomic

from tasks.operations.filters import InvalidFilter, Params, given, parse_id
from tasks.support.database import fetch, is_cancelled

PAGE = 50
SORTS = NEWEST_FIRST, OLDEST_FIRST = "-id", "id"  # by an index; any other order would read the whole table
FIRST_WINDOW = 20_000  # ids
WINDOW_GROWTH = 4
SEARCH_SECONDS = 2.0
BOUNDS_SECONDS = 0.5

# Ids grow with the time of creation, except for open transactions. So bisection finds the first id of a time, and a
# search for old tasks skips millions of newer ones. It begins with the lowest id: each probe among pruned ids that an
# open transaction keeps would pass all of them again.
CREATED_ID = """
WITH RECURSIVE halving (low, high) AS (
    SELECT (SELECT min(id) FROM tasks_task), %(highest)s::bigint + 1
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

T = TypeVar("T")
# Not the lowest one too: beside a transaction of half an hour, ids that were pruned meanwhile stay in the index, and to
# pass three million of them took five seconds. A walk that goes down to 0 takes a few windows more.
LOWEST = 0
HIGHEST = "SELECT coalesce(max(id), -1) AS highest FROM tasks_task"
LIMIT_STATEMENT = "SELECT set_config('statement_timeout', %(milliseconds)s::text, true)"


@dataclass(frozen=True)
class Listing:
    """One page of rows.

    `newer`, `older`: the id above or below which a neighbouring page lies, None without one. `looked_down_to`: the id
    at which the time ran out, None when the search is complete.
    """

    rows: list[Any]
    newer: int | None = None
    older: int | None = None
    looked_down_to: int | None = None


@dataclass(frozen=True)
class PageCursor:
    """The position of a page: below the id `before`, above the id `after`, or at the end that comes first.

    `is_ascending`: the oldest come first.
    """

    before: int | None = None
    after: int | None = None
    is_ascending: bool = False

    @classmethod
    def from_params(cls, params: Params) -> Self:
        """Read `before`, `after` and `sort`. Raises InvalidFilter."""
        ids = {name: next((parse_id(text) for text in given(params, name)), None) for name in ("before", "after")}
        if None not in ids.values():
            raise InvalidFilter("A page lies `before` an id or `after` one: remove either.")
        (order,) = given(params, "sort") or (NEWEST_FIRST,)
        if order not in SORTS:
            raise InvalidFilter(f"The list cannot be sorted by {order!r}: choose one of {', '.join(SORTS)}.")
        return cls(**ids, is_ascending=order == OLDEST_FIRST)


FIRST_PAGE = PageCursor()


class Filter(Protocol):
    """Conditions on the rows of a table with a growing numeric key; `shows` checks what SQL cannot."""

    def queryset(self) -> QuerySet[Any]: ...

    def shows(self, row: Any, /) -> bool: ...

    def as_params(self) -> list[tuple[str, str]]: ...


def table_bounds(chosen: Filter) -> tuple[int, int]:
    """LOWEST and the highest id of the table, (0, -1) if it is empty."""
    highest = chosen.queryset().model._default_manager.aggregate(highest=Max("pk"))["highest"]
    return LOWEST, -1 if highest is None else highest


def task_bounds(chosen: Filter) -> tuple[int, int]:
    """The ids between which tasks can match: those younger than the filter's age are skipped, if found in time."""
    highest = fetch(connection, HIGHEST)[0]["highest"]
    age = getattr(chosen, "older_than", None)
    if age is None or highest < LOWEST:
        return LOWEST, highest
    params = {"highest": highest, "age": age}
    newest = until(time.monotonic() + BOUNDS_SECONDS, lambda: fetch(connection, CREATED_ID, params))
    return LOWEST, min(highest, newest[0]["id"]) if newest else highest


def find(
    chosen: Filter,
    cursor: PageCursor,
    *,
    limit: int = PAGE,
    seconds: float | None = None,
    bounds: Callable[[Filter], tuple[int, int]] = task_bounds,
    without: Sequence[str] = (),
) -> Listing:
    """One page of the rows that match; takes about `seconds` at most (None: SEARCH_SECONDS).

    `bounds` finds the ids between which rows can match; `without` names columns that nobody will read.
    """
    search = Search(chosen, limit + 1, SEARCH_SECONDS if seconds is None else seconds, without)
    lowest, highest = bounds(chosen)
    if cursor.is_ascending:
        return upwards(search, cursor, (lowest, highest), limit)
    if cursor.after is not None:
        found = search.walk(max(cursor.after, lowest - 1), highest, +1)
        rows = found[:limit][::-1]
        newer = rows[0].pk if rows and (len(found) > limit or search.stopped_at) else None
        return Listing(rows, newer=newer, older=rows[-1].pk if rows else cursor.after + 1)
    found = search.walk(min(cursor.before or highest + 1, highest + 1), lowest, -1)
    rows = found[:limit]
    older = rows[-1].pk if len(found) > limit else search.stopped_at
    newer = rows[0].pk if cursor.before and rows else None
    return Listing(rows, newer=newer, older=older, looked_down_to=search.stopped_at)


def upwards(search: "Search", cursor: PageCursor, bounds: tuple[int, int], limit: int) -> Listing:
    """The page of a list in which the oldest come first."""
    lowest, highest = bounds
    if cursor.before is not None:
        found = search.walk(min(cursor.before, highest + 1), lowest, -1)
        rows = found[:limit][::-1]
        older = rows[0].pk if rows and (len(found) > limit or search.stopped_at) else None
        return Listing(rows, older=older, newer=rows[-1].pk if rows else cursor.before - 1)
    found = search.walk(max(cursor.after or 0, lowest - 1), highest, +1)
    rows = found[:limit]
    newer = rows[-1].pk if len(found) > limit else search.stopped_at
    older = rows[0].pk if cursor.after and rows else None
    return Listing(rows, newer=newer, older=older, looked_down_to=search.stopped_at)


class Search:
    """A walk through windows of ids, in one direction, with a time limit."""

    def __init__(self, chosen: Filter, wanted: int, seconds: float, without: Sequence[str] = ()) -> None:
        self.chosen = chosen
        self.without = without
        self.wanted = wanted
        self.deadline = time.monotonic() + seconds
        self.stopped_at: int | None = None  # the id reached when the time ran out

    def walk(self, position: int, end: int, direction: int) -> list[Any]:
        """The first matches beyond `position`, up to and including `end`, in walking order."""
        found: list[Any] = []
        window = FIRST_WINDOW
        while len(found) < self.wanted and (end - position) * direction > 0:
            rows = self._window(position, position + window * direction, direction)
            if rows is None:
                self.stopped_at = position
                break
            found += [task for task in rows if self.chosen.shows(task)]
            is_full = len(rows) == self.wanted
            position = rows[-1].pk if is_full else position + window * direction
            window *= WINDOW_GROWTH
        return found[: self.wanted]

    def _window(self, position: int, end: int, direction: int) -> list[Any] | None:
        """The matches beyond `position`, up to and including `end`, in walking order; None when the time is over."""
        limits = {"pk__lt": position, "pk__gte": end} if direction < 0 else {"pk__gt": position, "pk__lte": end}
        matches = self.chosen.queryset().filter(**limits).order_by("-pk" if direction < 0 else "pk")
        if self.without:
            matches = matches.defer(*self.without)
        return until(self.deadline, lambda: list(matches[: self.wanted]))


def until(deadline: float, read: Callable[[], T]) -> T | None:
    """The result of `read`, whose statement ends at the deadline (`time.monotonic`); None when the time is over."""
    milliseconds = int(1000 * (deadline - time.monotonic()))
    if milliseconds <= 0:
        return None
    try:
        with atomic(), connection.cursor() as cursor:
            cursor.execute(LIMIT_STATEMENT, {"milliseconds": str(milliseconds)})
            return read()
    except OperationalError as error:
        if not is_cancelled(error):
            raise
        return None
