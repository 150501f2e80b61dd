"""Middleware: answers probes, redirects expired logins, and shows database errors on a page that needs no database."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Overdue
from contextlib import contextmanager, nullcontext, suppress
from functools import wraps
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, DatabaseError, Error, InterfaceError, OperationalError, connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.loader import render_to_string
from django.template.response import SimpleTemplateResponse
from django.utils.cache import add_never_cache_headers
from django.utils.translation import gettext_lazy as _
from django.views import defaults

from dashboard.live import last_known
from dashboard.locks.identity import RequestNameMiddleware
from tasks import conf
from tasks.diagnosis import lock_holders
from tasks.diagnosis.lock_holders import Holder
from tasks.support.addresses import address
from tasks.support.database import execute, fetch, is_lock_not_available, sqlstate

logger = logging.getLogger(__name__)

# We promise an answer within 2 s, but libpq may take that long for each address of a host. So a thread probes.
ANSWER_SECONDS = 1.5
CONNECT_SECONDS = 2
KEPT_SECONDS = 1.0  # anybody may ask at any rate: at most one new session a second
PROBE_SESSION = "-c statement_timeout=1s -c lock_timeout=800ms"  # the lock first, so that it is told
_prober = ThreadPoolExecutor(max_workers=1, thread_name_prefix="readyz")


class Probe(NamedTuple):
    """One probe of the database; `began` is by `time.monotonic()`."""

    faults: Future[list[str]]
    began: float


_guard = threading.Lock()
_latest: Probe | None = None


def alive(request: HttpRequest) -> HttpResponse:
    """Answer 200 `ok`: the process answers, whatever its database does."""
    return HttpResponse("ok", content_type="text/plain; charset=utf-8")


def ready(request: HttpRequest) -> JsonResponse:
    """Answer 200 if the database is reachable and every migration applied, else 503 with the reasons."""
    probe = shared_probe()
    try:
        reasons = probe.faults.result(timeout=max(0.0, probe.began + ANSWER_SECONDS - time.monotonic()))
    except Overdue:
        reasons = [f"The database did not answer within {ANSWER_SECONDS} s."]
    return JsonResponse({"ready": not reasons, "reasons": reasons}, status=503 if reasons else 200)


def shared_probe() -> Probe:
    """The running probe or one that began less than a second ago, else a new one."""
    global _latest
    with _guard:
        now = time.monotonic()
        if _latest is None or (_latest.faults.done() and now >= _latest.began + KEPT_SECONDS):
            _latest = Probe(_prober.submit(find_faults), now)
        return _latest


def find_faults() -> list[str]:
    """Reasons why this process cannot serve. They name no host and no user, because anybody may ask."""
    probe = probing_connection()
    try:
        return missing_migrations(probe)
    except Error as error:
        logger.warning("not ready: %s", error)
        if is_lock_not_available(error):
            return ["A table that this probe reads is locked; `python manage.py show_locks --tree` names who holds it."]
        return [f"The database cannot be used ({type(error).__name__}); the log of this process says more."]
    finally:
        probe.close()


def probing_connection() -> BaseDatabaseWrapper:
    """Open a connection with short timeouts in place of this thread's own; migrations look it up by alias."""
    probe = connections.create_connection(DEFAULT_DB_ALIAS)
    options = {**probe.settings_dict["OPTIONS"], "connect_timeout": CONNECT_SECONDS}
    if "options" in options:  # a pooling proxy accepts none
        options["options"] = f"{options['options']} {PROBE_SESSION}"
    probe.settings_dict = {**probe.settings_dict, "OPTIONS": options}
    connections[DEFAULT_DB_ALIAS] = probe
    return probe


def missing_migrations(probe: BaseDatabaseWrapper) -> list[str]:
    """One reason that names the unapplied migrations; empty if there are none."""
    executor = MigrationExecutor(probe)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if not plan:
        return []
    names = ", ".join(f"{migration.app_label}.{migration.name}" for migration, _ in plan)
    return [f"Migrations are not applied: {names}. Run `python manage.py migrate`."]


GetResponse = Callable[[HttpRequest], HttpResponse]
PROBES = {"/healthz": alive, "/readyz": ready}
REASONS = {
    "57014": _("The database took too long for this page and was stopped. Narrow the filter."),
    "55P03": _(
        "A table of this page is locked, perhaps by a migration or VACUUM FULL. Try again in a moment. "
        "`python manage.py show_locks` says who locks it and how to end that session."
    ),
    "40P01": _("Two sessions waited for each other, and PostgreSQL cancelled this page. Try again."),
    "53300": _("The database takes no more connections."),
    "57P01": _("The database is shutting down."),
    "57P02": _("The database has crashed and restarts."),
    "57P03": _("The database is starting up."),
    "25006": _("The database takes no writes now: it is a standby, or a failover is under way."),
    "42501": _(
        "The database role of the web server has no right to do this. docs/roles.md says what each role may do."
    ),
    "42P01": _("The tables are missing. Run `python manage.py migrate`."),
    "42703": _("The tables belong to another version. Run `python manage.py migrate`."),
}


class HealthMiddleware:
    """Answers probes before the checks of host and HTTPS, because probes come by address over HTTP."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        probe = PROBES.get(request.path_info)
        if probe is None:
            return self.get_response(request)
        response = unstored(probe(request))
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response


def unstored(response: HttpResponse) -> HttpResponse:
    """Let no browser and no proxy keep it, unless it says something about that itself: a 404 may be kept otherwise."""
    if not response.has_header("Cache-Control"):
        add_never_cache_headers(response)
    return response


class PageMiddleware:
    """Redirects the whole page if the login of a fragment has expired; answers errors of the database.

    A list that a lock keeps from being read is answered with its last known state. An open tab has its own already, and
    gets the 503 that says who holds the lock.

    A dialog is told where an action leads (`X-Rowlock-To`): a script cannot read the target of a redirect.
    """

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return unstored(self.answer(request))

    def answer(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if response.status_code == 302 and request.headers.get("HX-Request"):
            return HttpResponse(status=204, headers={"HX-Redirect": response.headers["Location"]})
        if response.status_code == 302 and request.headers.get("X-Rowlock-Dialog") and request.user.is_authenticated:
            return HttpResponse(status=204, headers={"X-Rowlock-To": response.headers["Location"]})
        if last_known.is_incomplete(response):
            return from_memory(request) or response
        last_known.keep(request, response)
        return response

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        return from_memory(request, exception) or unavailable(request, exception)


PAGE_MIDDLEWARE = "dashboard.middleware.PageMiddleware"
# Our own project gives its sessions these limits and this name when they connect.
LIMIT = """
SELECT set_config('statement_timeout', '5s', false), set_config('lock_timeout', '2s', false),
    set_config('application_name', 'rowlock:web', false)
"""
UNLIMIT = "RESET statement_timeout; RESET lock_timeout; RESET application_name"


def for_a_page(view: GetResponse, *, is_ours: bool) -> GetResponse:
    """The page behind our middleware, if the project's MIDDLEWARE lacks it; the page is rendered inside of it.

    `is_ours`: not a page of the project's own models, so its statements have limits.
    """
    if PAGE_MIDDLEWARE in settings.MIDDLEWARE:
        return view

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        def rendered(asked: HttpRequest) -> HttpResponse:
            with limits() if is_ours else nullcontext():
                response = view(asked, *args, **kwargs)
                return response.render() if isinstance(response, SimpleTemplateResponse) else response

        page = PageMiddleware(RequestNameMiddleware(rendered))
        try:
            return page(request)
        except Exception as error:
            if (explained := page.process_exception(request, error)) is None:
                raise
            return explained

    return answer


@contextmanager
def limits() -> Iterator[None]:
    """Limit the statements of a page, and name its session, which no page may end.

    Behind a pooling proxy the role has limits, because sessions are shared there.
    """
    if conf.get("DIRECT_DATABASE_URL"):
        yield
        return
    fetch(connection, LIMIT)
    try:
        yield
    finally:
        with suppress(Error):  # a lost session has no limits to take back
            execute(connection, UNLIMIT)


def server_error(request: HttpRequest) -> HttpResponse:
    """The handler of 500: errors outside views, for example when "Not found" looks up the user."""
    return unavailable(request, sys.exception()) or defaults.server_error(request, "dashboard/500.html")


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """The handler of 400: Django takes a session that could not be saved for a deleted one."""
    error: BaseException | None = exception
    while error is not None and reason_of(error) is None:
        error = error.__context__
    return unavailable(request, error) or defaults.bad_request(request, exception)


def unavailable(request: HttpRequest, error: BaseException | None) -> HttpResponse | None:
    """A 503 that says what is wrong with the database, or None for other errors; it needs no login and no database.

    Whoever may see database locks is told who holds the one that was met.
    """
    reason = reason_of(error)
    if error is None or reason is None:
        return None
    logger.warning("%s %s answered 503: %s", request.method, request.path, error)
    holders = lock_holders.holders(connection, error) if lock_holders.is_met(error) and may_see(request) else []
    return sorry(request, reason, holders, is_locked=is_lock_not_available(error))


def sorry(request: HttpRequest, reason: str, holders: list[Holder], *, is_locked: bool) -> HttpResponse:
    context = {"reason": reason, "is_locked": is_locked, "holders": holders, **way_on(request)}
    page = render_to_string("dashboard/unavailable.html", context)
    return HttpResponse(page, status=503, headers={"Retry-After": "5"})


def from_memory(request: HttpRequest, error: BaseException | None = None) -> HttpResponse | None:
    """The last known state of a list that a lock keeps from being read, wholly (`error`) or in part.

    None if it is not known, or if no lock is in the way. An open tab has its own state and is only told of the lock.
    """
    if error is not None and not lock_holders.is_met(error):
        return None
    try:
        with lock_holders.briefly(connection):  # the tables that tell who reads may be locked too
            kept = last_known.known(request)
        holders = lock_holders.of_tables(connection) if kept else []
        if kept is None or not (holders or (error and is_lock_not_available(error))):
            return None
        shown = holders if may_see(request) else []
        if "HX-Request" in request.headers:
            return sorry(request, str(REASONS["55P03"]), shown, is_locked=True)
        return last_known.answer(request, kept, shown)
    except Error as problem:
        logger.warning("the last known state cannot be shown: %s", problem)
        return None


def may_see(request: HttpRequest) -> bool:
    """True if this person is known to have the right to see locks; False while the tables that tell are locked."""
    user = getattr(request, "user", None)
    try:
        with lock_holders.briefly(connection):
            return bool(user and user.is_staff and user.has_perm("dashboard.view_backend"))
    except Error as problem:
        logger.warning("the rights of the reader are not known: %s", problem)
        return False


def way_on(request: HttpRequest) -> dict[str, Any]:
    """The target of "Try again": for an action the page it was pressed on, because a link cannot repeat a POST."""
    if request.method in ("GET", "HEAD"):
        return {"path": request.get_full_path()}
    pressed_on = urlsplit(request.headers.get("referer", ""))
    if pressed_on.netloc != request.get_host():
        return {"path": address("admin:index"), "is_action": True}
    here = pressed_on._replace(scheme="", netloc="", path="/" + pressed_on.path.lstrip("/"))
    return {"path": here.geturl(), "is_action": True}


def reason_of(error: BaseException | None) -> str | None:
    """Describe the database's problem and the remedy; None if the error is not the database's.

    The text names no host and no user, because the reader may not be logged in.
    """
    if not isinstance(error, DatabaseError | InterfaceError):
        return None
    known = REASONS.get(sqlstate(error) or "")
    if known is None and not isinstance(error, OperationalError | InterfaceError):
        return None
    return str(known or _("The database does not answer. It may be down, restarting or unreachable from here."))
