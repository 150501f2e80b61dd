"""The list of tasks: the search through a large table, its rows and its page."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, Self
from urllib.parse import urlencode

from django.db import OperationalError, connection
from django.db.models import Max, Min, QuerySet
from django.db.transaction import atomic
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from dashboard import links
from dashboard.live.fragment import SharedPart
from dashboard.site import page
from dashboard.task_pages import VIEW
from dashboard.task_pages.actions import PAGE_ACTIONS, buttons_of, unfinished_runs
from dashboard.task_pages.rows import latest_errors, list_row
from dashboard.task_pages.saved_views import person_of, views_of
from dashboard.task_pages.search import WORDS, parse, written
from dashboard.task_pages.tabs import tabs
from tasks.admin import rights
from tasks.diagnosis import gather
from tasks.framework import declaration
from tasks.models import TaskStatus
from tasks.operations.filters import InvalidFilter, Params, TaskFilter, given, parse_id
from tasks.support.database import fetch, sqlstate

PAGE = 50
SORTS = NEWEST_FIRST, OLDEST_FIRST = "-id", "id"  # by an index; any other order would read the whole table
FIRST_WINDOW = 20_000  # ids
WINDOW_GROWTH = 4
SEARCH_SECONDS = 2.0
QUERY_CANCELED = "57014"
EVERY_SECONDS = 3  # the list refreshes itself
QUICK_SECONDS = 0.3  # a slower search does not refresh itself

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


class Filter(Protocol):
    """Conditions on the rows of a table with a growing numeric key; `shows` checks what SQL cannot."""

    def queryset(self) -> QuerySet[Any]: ...

    def shows(self, row: Any, /) -> bool: ...

    def as_params(self) -> list[tuple[str, str]]: ...


def table_bounds(chosen: Filter) -> tuple[int, int]:
    """The lowest and the highest id of the table, (0, -1) if it is empty."""
    table = chosen.queryset().model._default_manager
    found = table.aggregate(lowest=Min("pk"), highest=Max("pk"))
    return (0, -1) if found["lowest"] is None else (found["lowest"], found["highest"])


def task_bounds(chosen: Filter) -> tuple[int, int]:
    """The ids between which tasks can match: those younger than the filter's age are skipped."""
    lowest, highest = table_bounds(chosen)
    age = getattr(chosen, "older_than", None)
    if age is None or highest < lowest:
        return lowest, highest
    found = fetch(connection, CREATED_ID, {"lowest": lowest, "highest": highest, "age": age})
    return lowest, min(highest, found[0]["id"]) if found else highest


def find(
    chosen: Filter,
    cursor: PageCursor,
    *,
    limit: int = PAGE,
    seconds: float | None = None,
    bounds: Callable[[Filter], tuple[int, int]] = task_bounds,
) -> Listing:
    """One page of the rows that match; takes about `seconds` at most (None: SEARCH_SECONDS).

    `bounds` finds the ids between which rows can match.
    """
    search = Search(chosen, limit + 1, SEARCH_SECONDS if seconds is None else seconds)
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

    def __init__(self, chosen: Filter, wanted: int, seconds: float) -> None:
        self.chosen = chosen
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
        milliseconds = int(1000 * (self.deadline - time.monotonic()))
        if milliseconds <= 0:
            return None
        try:
            with atomic(), connection.cursor() as cursor:
                cursor.execute(LIMIT_STATEMENT, {"milliseconds": str(milliseconds)})
                return list(matches[: self.wanted])
        except OperationalError as error:
            if sqlstate(error) != QUERY_CANCELED:
                raise
            return None


def known_queues() -> list[str]:
    """Names of queues to choose from: of waiting tasks, of settings and of workers."""
    return [row["name"] for row in fetch(connection, QUEUE_NAMES)]


def rows_context(chosen: TaskFilter, cursor: PageCursor) -> dict[str, Any]:
    """The rows of one page of the list, and the URLs of its neighbours."""
    started = time.monotonic()
    listing = find(chosen, cursor)
    is_quick = time.monotonic() - started < QUICK_SECONDS
    facts, errors = gather(listing.rows), latest_errors(listing.rows)
    is_whole = not (listing.newer or listing.older or listing.looked_down_to)
    shown_tabs = tabs(chosen)
    counted = next((tab.number for tab in shown_tabs if tab.is_here), "")
    return {
        "is_live": is_quick and listing.looked_down_to is None,
        "rows": [list_row(task, facts, errors.get(task.pk, "")) for task in listing.rows],
        "tabs": shown_tabs,
        "number": str(len(listing.rows)) if is_whole else counted,
        "cursor": cursor,
        "listing": listing,
        "now": facts.now,
        "links": neighbours(chosen, listing, cursor),
        "chosen": chosen,
        "query": chosen.as_query(),
    }


def bar_context(chosen: TaskFilter, user: Any) -> dict[str, Any]:
    """The actions on ticked tasks that suit the filter's states: the likeliest one, and the others for the menu."""
    statuses = set(chosen.statuses or TaskStatus.values)
    fitting = [action for action in PAGE_ACTIONS.values() if statuses & set(action.verb.statuses)]
    likeliest = PAGE_ACTIONS["requeue"] if TaskStatus.FAILED in statuses else next(iter(fitting), None)
    return {
        "step": likeliest,
        "actions": [action for action in fitting if action is not likeliest],
        "forbidden": tuple(action.name for action in PAGE_ACTIONS.values() if not user.has_perm(action.right)),
    }


def search_context(chosen: TaskFilter, user_id: int, text: str | None = None) -> dict[str, Any]:
    """The search box, with `text` or the words of the filter; what it completes; and the person's saved views."""
    return {
        "chosen": chosen,
        "search": written(chosen) if text is None else text,
        "words": WORDS,
        "query": chosen.as_query(),
        "queues": known_queues(),
        "paths": declaration.paths(),
        "views": views_of(user_id, chosen),
    }


def neighbours(chosen: Filter, listing: Listing, cursor: PageCursor = PageCursor()) -> dict[str, str]:
    """Queries of the first page and of the newer and the older one, with filter and order; empty where there is none.

    `onward` and `backward` are the same two in the order of the list; `other_order` is the list turned round.
    """
    params, order = chosen.as_params(), [("sort", OLDEST_FIRST)]
    here = [*params, *order] if cursor.is_ascending else params
    newer = "?" + urlencode([*here, ("after", listing.newer)]) if listing.newer else ""
    older = "?" + urlencode([*here, ("before", listing.older)]) if listing.older else ""
    onward, backward = (newer, older) if cursor.is_ascending else (older, newer)
    return {
        "newest": "?" + urlencode(here),
        "newer": newer,
        "older": older,
        "onward": onward,
        "backward": backward,
        "other_order": "?" + urlencode(params if cursor.is_ascending else [*params, *order]),
    }


def list_view(request: HttpRequest) -> HttpResponse:
    """The list; its URL holds the filter and the page. It refreshes itself only if the search was quick.

    Words typed into the search box (`search`) become a filter, whose URL is the answer.
    """
    rights.require(request.user, VIEW)
    user_id, typed = person_of(request), request.GET.get("search")
    try:
        if typed is not None:
            return HttpResponseRedirect(links.listed(parse(typed)))
        chosen, cursor = TaskFilter.from_params(request.GET), PageCursor.from_params(request.GET)
    except InvalidFilter as error:
        context = {"fault": str(error), "tabs": tabs(TaskFilter()), **search_context(TaskFilter(), user_id, typed)}
        return page(request, "task_pages/list.html", _("Tasks"), context, status=400)

    def rows(asked: HttpRequest) -> dict[str, Any]:
        return {**rows_context(chosen, cursor), **bar_context(chosen, asked.user)}

    part = SharedPart("task_pages/_rows.html", rows, EVERY_SECONDS, is_apart=True)
    if "HX-Request" in request.headers:
        return part.answer(request)
    context = rows(request)
    if context["is_live"]:
        part.expect(request)
    context |= {
        **search_context(chosen, user_id),
        "buttons": buttons_of(PAGE_ACTIONS.values(), request.user),
        "runs_under_way": unfinished_runs(),
        "every": EVERY_SECONDS,
    }
    return page(request, "task_pages/list.html", _("Tasks"), context)
