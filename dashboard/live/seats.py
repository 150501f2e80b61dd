"""Reserve a few threads of each web process for actions: page views can use all the others.

If views hang, threads run out, not connections, because each thread has its own. A separate pool of connections would
not help. So a view that finds no free thread is refused at once; its tab keeps its last state and asks again.

In the first seconds of a process every view connects and imports, so simultaneous tabs find no free thread. Their
refreshes are answered "starting" instead of an error, and repeated a second later.
"""

import math
import threading
import time
from contextlib import ExitStack
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.template.loader import render_to_string
from django.utils import translation
from django.utils.html import format_html
from django.utils.translation import gettext as _

from dashboard.middleware import GetResponse, unstored

LOOKING = ("GET", "HEAD", "OPTIONS")
FREE_FOR_ACTIONS = 4  # threads
NEVER_SENT_AWAY = "/metrics"  # one scrape at a time, and it reports the overload
STARTING_SECONDS = 30.0  # from the first view of a process; after that a slow database is reported as slow

_seats: threading.Semaphore | None = None  # None: no limit, as in tests and under `runserver`
_starts_until = 0.0  # by `time.monotonic()`; infinite until the first view


def limit(threads: int) -> None:
    """Reserve threads for actions; called by each web process with its number of threads."""
    global _seats, _starts_until
    _seats = threading.Semaphore(max(1, threads - FREE_FOR_ACTIONS))
    _starts_until = math.inf


def is_starting() -> bool:
    """True for STARTING_SECONDS after the first view in this process."""
    global _starts_until
    now = time.monotonic()
    _starts_until = min(_starts_until, now + STARTING_SECONDS)
    return now < _starts_until


class SeatedStream(StreamingHttpResponse):
    """A stream holds its thread, so it keeps its seat until it is closed, also if nothing was read."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.at_end = ExitStack()

    def close(self) -> None:
        """Leave the seat; a second time does nothing."""
        super().close()
        self.at_end.close()


class SeatMiddleware:
    """Limits concurrent requests that only read, and refuses those above the limit."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        seats = _seats
        if seats is None or request.method not in LOOKING or request.path_info == NEVER_SENT_AWAY:
            return self.get_response(request)
        starting = is_starting()
        if not seats.acquire(blocking=False):
            with translation.override(translation.get_language_from_request(request)):
                is_soon = starting and "HX-Request" in request.headers
                return unstored(still_starting() if is_soon else sent_away(request))
        with ExitStack() as seat:
            seat.callback(seats.release)
            response = self.get_response(request)
            if isinstance(response, SeatedStream):
                response.at_end.push(seat.pop_all())
            return response


def still_starting() -> HttpResponse:
    """Answer 202 to a refresh, which its tab soon repeats (`live.js`); needs no database."""
    text = _("The dashboard is starting; this page asks again by itself.")
    return HttpResponse(format_html('<p role="alert">{}</p>', text), status=202, headers={"Retry-After": "1"})


def sent_away(request: HttpRequest) -> HttpResponse:
    """Answer 503 with a page that needs no database; a program gets it in the API's form."""
    reason = _("Too many pages are open, or the database is slow. Buttons still work.")
    if "Authorization" in request.headers:
        problem = {"title": "Service Unavailable", "status": 503, "detail": reason, "faults": []}
        return JsonResponse(problem, status=503, headers={"Retry-After": "2"})
    context = {"reason": reason, "path": request.get_full_path(), "is_busy": True}
    page = render_to_string("dashboard/unavailable.html", context)
    return HttpResponse(page, status=503, headers={"Retry-After": "2"})
