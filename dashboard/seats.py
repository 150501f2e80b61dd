"""Looking takes all but a few of a web process's threads: however many looks hang, an action finds a thread.

A pool of connections of its own would not do this. Every thread has a connection already; what runs out when looks are
slow are the threads, and one that waits for a pool is as lost to an action as one that waits for the database. So a
look that finds no seat is not kept waiting but sent away: a tab keeps its last known state and asks again.
"""

import threading

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.utils.translation import gettext as _

from dashboard.middleware import GetResponse

LOOKING = ("GET", "HEAD", "OPTIONS")
FREE_FOR_ACTIONS = 4  # threads
NEVER_SENT_AWAY = "/metrics"  # one scrape at a time, which tells of the trouble

_seats: threading.Semaphore | None = None  # no limit, as in tests and under `runserver`


def limit(threads: int) -> None:
    """Called by each process of the web server, which has so many threads."""
    global _seats
    _seats = threading.Semaphore(max(1, threads - FREE_FOR_ACTIONS))


class SeatMiddleware:
    """Gives each request that only looks one of the seats, and sends away those that find none."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        seats = _seats
        if seats is None or request.method not in LOOKING or request.path_info == NEVER_SENT_AWAY:
            return self.get_response(request)
        if not seats.acquire(blocking=False):
            return sent_away(request)
        try:
            return self.get_response(request)
        finally:
            seats.release()


def sent_away(request: HttpRequest) -> HttpResponse:
    """A page that asks nobody anything."""
    reason = _("Too many pages are being looked at, or looking takes long; actions are carried out all the same.")
    context = {"reason": reason, "path": request.get_full_path(), "is_busy": True}
    page = render_to_string("dashboard/unavailable.html", context)
    return HttpResponse(page, status=503, headers={"Retry-After": "2"})
