"""Watch from a thread of each web process and from cron, and start a worker for alerts if none would send them."""

import logging
import os
import subprocess
import sys
import threading

from django.db import DatabaseError, connection, connections

from dashboard import alerts
from dashboard.processes import bound
from tasks import panels
from tasks.queue import presence
from tasks.support.database import fetch

logger = logging.getLogger(__name__)
EVERY_SECONDS = 3.0
PATIENCE_SECONDS = 5.0  # workers that are alive may all be busy
LONGEST_SECONDS = 120.0

DUE = """
SELECT extract(epoch FROM statement_timestamp() - min(run_after))::float8 AS seconds FROM tasks_task
WHERE status = 'READY' AND queue_name = %(queue)s::text AND run_after <= statement_timestamp()
"""


def needs_worker() -> bool:
    """True if an alert is due and no live worker serves its queue, or none has taken it for some seconds."""
    waits = fetch(connection, DUE, {"queue": alerts.QUEUE})[0]["seconds"]
    if waits is None or waits > PATIENCE_SECONDS:
        return waits is not None
    return not any(worker.is_alive and worker.serves(alerts.QUEUE) for worker in presence.states().values())


def start_worker() -> "subprocess.Popen[bytes]":
    """A worker that serves only alerts, and ends when none is due or when this process ends."""
    argv = [sys.executable, "-m", "django", "run_worker", "--queue", alerts.QUEUE, "--burst", "-v0"]
    # What this process can import, its child must be able to import too.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(bound(argv), env=environment, stdin=subprocess.DEVNULL)


@panels.alerter
def watch_and_send() -> str:
    """Watch once and send what is due, from cron; returns a sentence about it."""
    from dashboard.alerts.watch import watch  # it imports the lines, whose package imports this module

    watch()
    if not needs_worker():
        return "No alert waits for a worker."
    try:
        status = start_worker().wait(LONGEST_SECONDS)
    except subprocess.TimeoutExpired:
        return "Alerts are still being sent."
    return "Alerts were sent by a worker of their own." if status == 0 else "The worker for alerts failed: see its log."


class WatchingThread(threading.Thread):
    """Watches every few seconds until stopped. Several processes take turns by a lock of each comparison."""

    def __init__(self, every_seconds: float = EVERY_SECONDS) -> None:
        super().__init__(name="alerts", daemon=True)
        self.every_seconds = every_seconds
        self.stopping = threading.Event()
        self.worker: subprocess.Popen[bytes] | None = None
        self.problem = ""

    def run(self) -> None:
        """Watch, and try again after an error: the database is away, read-only, or not migrated."""
        while not self.stopping.wait(self.every_seconds):
            try:
                self.turn()
                self.problem = ""
            except DatabaseError as error:
                self.note(str(error).strip().partition("\n")[0])
            except Exception:  # an app's broken source must not end the alerts of all others
                logger.exception("Alerts could not be watched")
            finally:
                connections.close_all()

    def turn(self) -> None:
        """One comparison, and a worker if one is needed."""
        from dashboard.alerts.watch import watch  # as above

        if self.worker is not None and self.worker.poll() is not None:
            self.worker = None
        if watch() and self.worker is None and needs_worker():
            self.worker = start_worker()

    def note(self, problem: str) -> None:
        """Log a problem once while it lasts."""
        if problem != self.problem:
            logger.warning("alerts pause: %s", problem)
        self.problem = problem

    def stop(self) -> None:
        """Ask it to end after the current comparison."""
        self.stopping.set()
