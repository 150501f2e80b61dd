"""gunicorn's settings for the dashboard, under `manage.py up` and in production.

GUNICORN_CMD_ARGS overrides them ("--bind 0.0.0.0:8000"), WEB_CONCURRENCY sets the number of processes (1).
"""

import os
import sys
from pathlib import Path
from typing import Any

import environ

wsgi_app = "dashboard.wsgi:application"
bind = f"127.0.0.1:{os.environ.get('PORT') or 8000}"
worker_class = "dashboard.serving.ServingWorker"
threads = 16  # each may hold a database connection; all but four of them may be looking (dashboard/live/seats.py)
graceful_timeout = 10
# Its default is one socket in the home folder, shared by every gunicorn of the user.
control_socket_disable = True
SWITCH_SECONDS = 0.0005
if os.environ.get("ROWLOCK_LOG_FORMAT") == "json":
    logger_class = "dashboard.serving.JsonLogger"  # for gunicorn's own lines


def on_starting(server: Any) -> None:
    """Ends with one line when there is no database; each worker would die of that, and be started again at once."""
    from dashboard import environment

    var = Path(os.environ.get("ROWLOCK_VAR") or Path(__file__).parent / "var")
    environment.database_settings(environ.Env(), var, sys.argv)


def pre_fork(server: Any, worker: Any) -> None:
    """Under --preload: closes connections before the fork; a child that closed one would end the parent's session."""
    from django.conf import settings
    from django.db import connections

    if settings.configured:
        connections.close_all()


def post_worker_init(worker: Any) -> None:
    """After the fork, which no thread survives: each process prefetches, and one of all keeps the history of locks."""
    from dashboard import metrics, serving
    from dashboard.alerts.watching import WatchingThread
    from dashboard.lab import schema
    from dashboard.live import prefetch, seats
    from dashboard.locks.history import SamplingThread

    seats.limit(worker.cfg.threads)
    prefetch.start()
    SamplingThread(schema.sweep).start()
    WatchingThread().start()
    metrics.observe()
    # The thread that prefetches renders for 50 ms, and each request waits for Python's lock several times meanwhile.
    sys.setswitchinterval(SWITCH_SECONDS)
    serving.freeze_garbage()
