"""The thread that keeps the lock history: one for all processes of all web servers on a database.

It runs in the web server, not in the workers' sweep: the sweep decides over life and death and must not wait for a
look at `pg_locks`, the history is needed most when no worker is left, and the queue knows nothing of the dashboard. The
processes elect one by an advisory lock on a session of its own, which a killed one loses at once; the others ask again
every quarter of a minute and hold no session meanwhile.

The elected one also drops what crashed runs of the lab have left: nobody else looks for it before the next run.
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
LAB_SECONDS = 10.0  # between two looks for schemas without a run

ELECT = "SELECT pg_try_advisory_lock(hashtext('rowlock:sampler'), hashtext(current_schema())) AS elected"


class SamplingThread(threading.Thread):
    """Samples whenever this process is the elected one, until stopped."""

    def __init__(self, every_seconds: float = EVERY_SECONDS, ask_again_seconds: float = ASK_AGAIN_SECONDS) -> None:
        super().__init__(name="lock history", daemon=True)
        self.every_seconds = every_seconds
        self.ask_again_seconds = ask_again_seconds
        self.stopping = threading.Event()

    def run(self) -> None:
        """A database that is away, read-only, not migrated yet or too slow to answer is asked again later."""
        problem = ""
        while not self.stopping.is_set():
            try:
                self.serve()
            except (psycopg.Error, PooledSession) as error:
                before, problem = problem, str(error).strip().partition("\n")[0]
                if problem != before:  # a standby would say the same four times a minute
                    logger.warning("the lock history pauses: %s", problem)
            self.stopping.wait(self.ask_again_seconds)

    def serve(self) -> None:
        """Sample for as long as the session lasts; return at once when another process does.

        Raises psycopg.Error, PooledSession.
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
        """Ask it to end after the sample at hand."""
        self.stopping.set()
