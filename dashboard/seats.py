"""Looking takes all but a few of a web process's threads: however many looks hang, an action finds a thread.

A pool of connections of its own would not do this. Every thread has a connection already; what runs out when looks are
slow are the threads, and one that waits for a pool is as lost to an action as one that waits for the database. So a
look that finds no seat is not kept waiting but sent away: a tab keeps its last known state and asks again.

In the first seconds of a process every look connects and loads what it needs, so tabs that come together find no seat.
Their refreshes are answered "starting" instead of an error, and come again a second later.
"""

import math
import threading
import time

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.utils import translation
from django.utils.html import format_html
from django.utils.translation import gettext as _

from dashboard.middleware import GetResponse

LOOKING = ("GET", "HEAD", "OPTIONS")
FREE_FOR_ACTIONS = 4  # threads
NEVER_SENT_AWAY = "/metrics"  # one scrape at a time, which tells of the trouble
STARTING_SECONDS = 30.0  # from the first look of a process; a database that is slow for longer is told of as slow

_seats: threading.Semaphore | None = None  # no limit, as in tests and under `runserver`
_starts_until = 0.0  # by `time.monotonic()`; infinite until somebody looks


def limit(threads: int) -> None:
    """Called by each process of the web server, which has so many threads."""
    global _seats, _starts_until
    _seats = threading.Semaphore(max(1, threads - FREE_FOR_ACTIONS))
    _starts_until = math.inf


def is_starting() -> bool:
    """True for half a minute after the first look at this process."""
    global _starts_until
    now = time.monotonic()
    _starts_until = min(_starts_until, now + STARTING_SECONDS)
    return now < _starts_until


class SeatMiddleware:
    """Gives each request that only looks one of the seats, and sends away those that find none."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        seats = _seats
        if seats is None or request.method not in LOOKING or request.path_info == NEVER_SENT_AWAY:
            return self.get_response(request)
        starting = is_starting()
        if not seats.acquire(blocking=False):
            with translation.override(translation.get_language_from_request(request)):
                return still_starting() if starting and "HX-Request" in request.headers else sent_away(request)
        try:
            return self.get_response(request)
        finally:
            seats.release()


def still_starting() -> HttpResponse:
    """The answer to a refresh that its tab repeats soon (`live.js`); it asks nobody anything."""
    text = _("The dashboard is starting; this page asks again by itself.")
    return HttpResponse(format_html('<p role="alert">{}</p>', text), status=202, headers={"Retry-After": "1"})


def sent_away(request: HttpRequest) -> HttpResponse:
    """A page that asks nobody anything."""
    reason = _("Too many pages are being looked at, or looking takes long; actions are carried out all the same.")
    context = {"reason": reason, "path": request.get_full_path(), "is_busy": True}
    page = render_to_string("dashboard/unavailable.html", context)
    return HttpResponse(page, status=503, headers={"Retry-After": "2"})
