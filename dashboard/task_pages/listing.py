"""The list of tasks: the search through a large table, its rows and its page."""

import time
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.db import connection
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from dashboard import links
from dashboard.layout import page
from dashboard.live import snapshots
from dashboard.live.fragment import SharedPart
from dashboard.task_pages import VIEW
from dashboard.task_pages.actions import PAGE_ACTIONS, buttons_of, unfinished_runs
from dashboard.task_pages.rows import latest_errors, list_row
from dashboard.task_pages.saved_views import person_of, views_of
from dashboard.task_pages.search import WORDS, parse, written
from dashboard.task_pages.tabs import archive_url, tabs
from tasks.admin import rights
from tasks.diagnosis import gather
from tasks.diagnosis.progress import reports
from tasks.framework import declaration, payload
from tasks.models import TaskStatus
from tasks.operations.filters import InvalidFilter, TaskFilter, parse_moment
from tasks.operations.search import FIRST_PAGE, OLDEST_FIRST, Filter, Listing, PageCursor, find
from tasks.panels import Snapshot
from tasks.support import database
from tasks.support.database import fetch

EVERY_SECONDS = 3  # the list refreshes itself
QUICK_SECONDS = 0.3  # a slower search does not refresh itself

# A loose index scan over the claim's index, and two small tables.
QUEUE_NAMES = """
WITH RECURSIVE waiting (name) AS (
    (SELECT queue_name FROM tasks_task
     WHERE status = 'READY' AND ordering_key IS NULL AND concurrency_key IS NULL ORDER BY queue_name LIMIT 1)
    UNION ALL
    SELECT (SELECT task.queue_name FROM tasks_task AS task
            WHERE task.status = 'READY' AND task.ordering_key IS NULL AND task.concurrency_key IS NULL
              AND task.queue_name > waiting.name
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


def known_queues() -> list[str]:
    """Names of queues to choose from: of waiting tasks, of settings and of workers."""
    return [row["name"] for row in fetch(connection, QUEUE_NAMES)]


def rows_context(chosen: TaskFilter, cursor: PageCursor, snapshot: Snapshot) -> dict[str, Any]:
    """The rows of one page of the list, and the URLs of its neighbours."""
    started = time.monotonic()
    listing = find(chosen, cursor)
    is_quick = time.monotonic() - started < QUICK_SECONDS
    facts, errors = gather(listing.rows), latest_errors(listing.rows)
    told = reports(listing.rows, facts.now)
    is_whole = not (listing.newer or listing.older or listing.looked_down_to)
    shown_tabs = tabs(snapshot, chosen)
    counted = next((tab.number for tab in shown_tabs if tab.is_here), "")
    return {
        "is_live": is_quick and listing.looked_down_to is None,
        "rows": [list_row(task, facts, errors.get(task.pk, ""), told.get(task.pk)) for task in listing.rows],
        "tabs": shown_tabs,
        "number": str(len(listing.rows)) if is_whole else counted,
        "cursor": cursor,
        "listing": listing,
        "now": facts.now,
        "links": neighbours(chosen, listing, cursor),
        "chosen": chosen,
        "query": chosen.as_query(),
        "archive_url": archive_url(chosen),
        "is_blind": bool(chosen.text and payload.keys()),
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


def neighbours(chosen: Filter, listing: Listing, cursor: PageCursor = FIRST_PAGE) -> dict[str, str]:
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
        context = {
            "fault": str(error),
            "tabs": tabs(snapshots.of(request)),
            **search_context(TaskFilter(), user_id, typed),
        }
        return page(request, "task_pages/list.html", _("Tasks"), context, status=400)

    def rows(asked: HttpRequest) -> dict[str, Any]:
        return {**rows_context(chosen, cursor, snapshots.of(asked)), **bar_context(chosen, asked.user)}

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


def at_of(text: str) -> datetime | None:
    """The time that an age or a time means, by the database's clock."""
    meant = parse_moment(text)
    return database.now(connection) - meant if isinstance(meant, timedelta) else meant
