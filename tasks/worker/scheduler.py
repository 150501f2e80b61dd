"""The part of a supervisor that ticks: it knows when the next tick is due, and wakes for it."""

import logging
import math
import time

import psycopg

from tasks.diagnosis import lock_holders
from tasks.framework import declaration
from tasks.schedule import declared, ticks

logger = logging.getLogger(__name__)
NEVER = math.inf
RETRY_SECONDS = 1.0
LOG_SECONDS = 30.0


class Scheduler:
    """`due_at`: when to tick, in `time.monotonic()`; `paths`: the functions that are known here."""

    def __init__(self) -> None:
        self.due_at = NEVER
        self.log_at = 0.0
        self.is_synchronised = False
        self.paths = declaration.paths()

    def expect(self, seconds: float | None) -> None:
        """Note in how many seconds the next tick is due; None without a schedule."""
        self.due_at = NEVER if seconds is None else time.monotonic() + seconds

    def tick(self, connection: psycopg.Connection) -> None:
        """Make the ticks that are due; the first time, also bring declared schedules into the table."""
        try:
            if not self.is_synchronised:
                declared.synchronise(connection)
                self.is_synchronised = True
                self.due_at = 0.0
            if time.monotonic() >= self.due_at:
                self.expect(ticks.tick(connection))
        except psycopg.errors.LockNotAvailable as error:
            self.expect(RETRY_SECONDS)
            if time.monotonic() >= self.log_at:
                logger.warning("schedules wait for a lock: %s", lock_holders.told(connection, error))
                self.log_at = time.monotonic() + LOG_SECONDS
