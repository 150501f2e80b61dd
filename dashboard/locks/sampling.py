"""The thread that writes the lock history: one for all web processes on a database.

It runs in the web server, not in the workers' sweep. The sweep declares workers dead and must not wait for `pg_locks`;
the history matters most when no worker is left; and the queue does not depend on the dashboard. The processes elect one
by an advisory lock on a session, which a killed process loses at once. The others ask again every ASK_AGAIN_SECONDS and
hold no session meanwhile. The elected one also drops schemas that crashed lab runs left.
"""

import logging
import threading
import time

import psycopg

from dashboard.lab import schema
from dashboard.locks.sampler import Sampler
from tasks.database import fetch
from tasks.exceptions import PooledSession
from tasks.pooling import own_session

logger = logging.getLogger(__name__)
EVERY_SECONDS = 2.0
ASK_AGAIN_SECONDS = 15.0
LAB_SECONDS = 10.0  # between two searches for schemas without a run

ELECT = "SELECT pg_try_advisory_lock(hashtext('rowlock:sampler'), hashtext(current_schema())) AS elected"


class SamplingThread(threading.Thread):
    """Samples while this process is elected, until stopped."""

    def __init__(self, every_seconds: float = EVERY_SECONDS, ask_again_seconds: float = ASK_AGAIN_SECONDS) -> None:
        super().__init__(name="lock history", daemon=True)
        self.every_seconds = every_seconds
        self.ask_again_seconds = ask_again_seconds
        self.stopping = threading.Event()

    def run(self) -> None:
        """Serve, and retry later after an error: the database is away, read-only, not migrated or too slow."""
        problem = ""
        while not self.stopping.is_set():
            try:
                self.serve()
            except (psycopg.Error, PooledSession) as error:
                before, problem = problem, str(error).strip().partition("\n")[0]
                if problem != before:  # a standby would log the same four times a minute
                    logger.warning("the lock history pauses: %s", problem)
            self.stopping.wait(self.ask_again_seconds)

    def serve(self) -> None:
        """Sample for as long as the session lasts; return at once if another process is elected.

        Raises psycopg.Error or PooledSession.
        """
        with own_session("rowlock:web:sampler", connect_timeout=5) as connection:
            if not fetch(connection, ELECT)[0]["elected"]:
                return
            sampler, sweep_at = Sampler(connection), 0.0
            while not self.stopping.is_set():
                sampler.sample()
                if time.monotonic() >= sweep_at:
                    schema.sweep(connection)
                    sweep_at = time.monotonic() + LAB_SECONDS
                self.stopping.wait(self.every_seconds)

    def stop(self) -> None:
        """Ask it to end after the current sample."""
        self.stopping.set()
