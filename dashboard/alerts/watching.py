"""Watch in one process of all: a thread of the web process, a companion of a supervisor of workers, or cron.

The watcher holds a named lock, so that the page of named locks shows it, and another process takes over within seconds
of its death. The lock spares the database many equal comparisons; that an incident is told once, each comparison
ensures by itself.
"""

import logging
import os
import subprocess
import sys
import threading

from django.db import DatabaseError, connection, connections

from dashboard import alerts, conf
from dashboard.processes import bound
from tasks import panels
from tasks.exceptions import LockHeld, LockLost, LockUnavailable
from tasks.locking import lock
from tasks.locking.named import postgres
from tasks.queue import presence
from tasks.support.database import Connection, fetch
from tasks.worker.companion import Wait

logger = logging.getLogger(__name__)
EVERY_SECONDS = 2.0
AGAIN_SECONDS = 1.0
LEASE_SECONDS = 10.0
PATIENCE_SECONDS = 5.0  # workers that are alive may all be busy
LONGEST_SECONDS = 120.0

HAS_CHANNEL = "SELECT EXISTS (SELECT FROM dashboard_alertchannel WHERE enabled) AS known"

DUE = """
SELECT extract(epoch FROM statement_timestamp() - min(run_after))::float8 AS seconds FROM tasks_task
WHERE status = 'READY' AND queue_name = %(queue)s::text AND run_after <= statement_timestamp()
"""


def is_needed(connection: Connection) -> bool:
    """True if there is a channel and nobody alive watches."""
    if not conf.get("ALERT_URLS") and not fetch(connection, HAS_CHANNEL)[0]["known"]:
        return False
    return all(holder.is_gone or not holder.is_held for holder in postgres.holders(connection, [alerts.QUEUE]))


def serve(wait: Wait) -> None:
    """Watch until another process does or no channel is left: the duty of a companion."""
    watcher = Watcher(wait)
    while watcher.serve() and not wait(AGAIN_SECONDS):
        pass


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


class Watcher:
    """Compares every few seconds while this process holds the lock. `wait(seconds)` returns True when it is to end."""

    def __init__(self, wait: Wait) -> None:
        self.wait = wait
        self.worker: subprocess.Popen[bytes] | None = None
        self.problem = ""

    def serve(self) -> bool:
        """Watch while it goes well. Returns False if this process is not needed, True to be called again soon.

        The database may be away, read-only or not migrated: that is logged.
        """
        try:
            if not is_needed(connection):
                return False
            with lock(alerts.QUEUE, ttl=LEASE_SECONDS, backend="lease") as held:
                while self.turn() and not held.is_lost and not self.wait(EVERY_SECONDS):
                    pass
        except LockHeld as error:
            return error.holder is not None and error.holder.is_gone
        except LockLost:
            logger.info("another process may watch for alerts now")
        except LockUnavailable:
            return self.turn_alone()
        except DatabaseError as error:
            self.note(error)
        except Exception:  # an app's broken source must not end the alerts of all others
            logger.exception("Alerts could not be watched")
        finally:
            connections.close_all()
        return True

    def turn(self) -> bool:
        """Make one comparison, and start a worker if one is needed. Returns False if it was not made."""
        from dashboard.alerts.watch import watch  # as above

        if self.worker is not None and self.worker.poll() is not None:
            self.worker = None
        try:
            if not watch():
                return False
            if self.worker is None and needs_worker():
                self.worker = start_worker()
        finally:
            connections.close_all()
        self.problem = ""
        return True

    def turn_alone(self) -> bool:
        """Compare without the lock, whose table may be the one that is locked. Returns True to be called again."""
        try:
            self.turn()
        except DatabaseError as error:
            self.note(error)
        return True

    def note(self, error: Exception) -> None:
        """Log a problem once while it lasts."""
        problem = str(error).strip().partition("\n")[0]
        if problem != self.problem:
            logger.warning("alerts pause: %s", problem)
        self.problem = problem


class WatchingThread(threading.Thread):
    """A thread of the web process that watches when no other process does, until stopped."""

    def __init__(self, every_seconds: float = EVERY_SECONDS) -> None:
        super().__init__(name="alerts", daemon=True)
        self.every_seconds = every_seconds
        self.stopping = threading.Event()
        self.watcher = Watcher(self.stopping.wait)

    def run(self) -> None:
        while not self.stopping.wait(self.every_seconds):
            self.watcher.serve()

    def stop(self) -> None:
        """Ask it to end after the current comparison."""
        self.stopping.set()
