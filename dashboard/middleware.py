"""Middleware: answers probes, redirects expired logins, and shows database errors on a page that needs no database."""

import logging
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from django.db import DatabaseError, InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.translation import gettext_lazy as _
from django.views import defaults

from dashboard import health

logger = logging.getLogger(__name__)
GetResponse = Callable[[HttpRequest], HttpResponse]
PROBES = {"/healthz": health.alive, "/readyz": health.ready}
REASONS = {
    "57014": _("The database would have taken too long over this page, and was stopped. Narrow the filter."),
    "55P03": _(
        "Somebody holds a whole table of this page: a migration perhaps, or VACUUM FULL. Try again in a moment."
    ),
    "40P01": _("Two sessions waited for each other, and this page gave way. Try again."),
    "53300": _("The database takes no more connections."),
    "57P01": _("The database is shutting down."),
    "57P02": _("The database has crashed and restarts."),
    "57P03": _("The database is starting up."),
    "25006": _("The database takes no writes at this moment: it is a standby, or a failover is under way."),
    "42501": _(
        "The database role of the web server has no right to do this. docs/roles.md says what each role may do."
    ),
    "42P01": _("The tables are not there. Run `python manage.py migrate`."),
    "42703": _("The tables are of another version. Run `python manage.py migrate`."),
}


class HealthMiddleware:
    """Answers probes before the checks of host and HTTPS, because probes come by address over HTTP."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        probe = PROBES.get(request.path_info)
        if probe is None:
            return self.get_response(request)
        response = probe(request)
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response


class HtmxLoginMiddleware:
    """If the login has expired, redirects the whole page instead of putting the login form into a fragment."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if response.status_code == 302 and request.headers.get("HX-Request"):
            return HttpResponse(status=204, headers={"HX-Redirect": response.headers["Location"]})
        return response


class DatabaseDownMiddleware:
    """Turns database errors into a 503 with the reason, rendered without the database."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        return unavailable(request, exception)


def server_error(request: HttpRequest) -> HttpResponse:
    """The handler of 500: errors outside views, for example when "Not found" looks up the user."""
    return unavailable(request, sys.exception()) or defaults.server_error(request)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """The handler of 400: Django takes a session that could not be saved for a deleted one."""
    error: BaseException | None = exception
    while error is not None:
        if page := unavailable(request, error):
            return page
        error = error.__context__
    return defaults.bad_request(request, exception)


def unavailable(request: HttpRequest, error: BaseException | None) -> HttpResponse | None:
    """The page that says what is wrong with the database, or None for other errors; it needs no login."""
    reason = reason_of(error)
    if reason is None:
        return None
    logger.warning("%s %s answered 503: %s", request.method, request.path, error)
    page = render_to_string("dashboard/unavailable.html", {"reason": reason, **way_on(request)})
    return HttpResponse(page, status=503, headers={"Retry-After": "5"})


def way_on(request: HttpRequest) -> dict[str, Any]:
    """The target of "Try again": for an action the page it was pressed on, because a link cannot repeat a POST."""
    if request.method in ("GET", "HEAD"):
        return {"path": request.get_full_path()}
    pressed_on = urlsplit(request.headers.get("referer", ""))
    is_ours = pressed_on.netloc == request.get_host()
    here = pressed_on._replace(scheme="", netloc="", path="/" + pressed_on.path.lstrip("/"))
    path = here.geturl() if is_ours else reverse("admin:index")
    return {"path": path, "is_action": True}


def reason_of(error: BaseException | None) -> str | None:
    """Describe the database's problem and the remedy; None if the error is not the database's.

    The text names no host and no user, because the reader may not be logged in.
    """
    if not isinstance(error, DatabaseError | InterfaceError):
        return None
    known = REASONS.get(getattr(error.__cause__, "sqlstate", None) or "")
    if known is None and not isinstance(error, OperationalError | InterfaceError):
        return None
    return str(known or _("The database does not answer. It may be down, restarting or unreachable from here."))
