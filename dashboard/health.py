"""Probes without login: `/healthz` (the process answers) and `/readyz` (it can serve)."""

import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Overdue
from typing import NamedTuple

from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse, JsonResponse

logger = logging.getLogger(__name__)

# We promise an answer within 2 s, but libpq may take that long for each address of a host. So a thread probes.
ANSWER_SECONDS = 1.5
CONNECT_SECONDS = 2
KEPT_SECONDS = 1.0  # anybody may ask at any rate: at most one new session a second
PROBE_SESSION = "-c statement_timeout=1s -c lock_timeout=1s"
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
