"""A thread that renews the lease of a held lock and reports its loss."""

import logging
import os
import threading
import time
from collections.abc import Callable

from tasks.exceptions import LockUnavailable
from tasks.locking.leases.contender import Contender

logger = logging.getLogger(__name__)
RENEWALS_PER_LEASE = 3
RETRY_FIRST_SECONDS = 0.05
RETRY_CAP_SECONDS = 1.0


class Keeper:
    """Renews one lease until it is stopped or the lock is lost.

    The lease counts from when its renewal was *asked for*, by this machine's monotonic clock, so it ends here first. A
    process that was frozen past its lease sees `is_lost` before anything else runs.
    """

    def __init__(self, contender: Contender, asked_at: float, on_lost: Callable[[], object] | None) -> None:
        self.contender = contender
        self.on_lost = on_lost
        self._deadline = asked_at + contender.ttl
        self._renew_at = asked_at + contender.ttl / RENEWALS_PER_LEASE
        self._retry_seconds = RETRY_FIRST_SECONDS
        self._is_lost = False
        self._is_stopped = False
        self._wake_reader, self._wake_writer = os.pipe()
        self._thread = threading.Thread(target=self._run, name=f"lock {contender.name}", daemon=True)
        self._thread.start()

    @property
    def is_lost(self) -> bool:
        return self._is_lost or self.seconds_left <= 0

    @property
    def seconds_left(self) -> float:
        """Seconds for which the lock is certainly ours if no further renewal succeeds."""
        return 0.0 if self._is_lost else max(0.0, self._deadline - time.monotonic())

    def stop(self) -> None:
        """End the thread; the lock is neither renewed nor released."""
        self._is_stopped = True
        os.write(self._wake_writer, b"x")
        self._thread.join()
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def _run(self) -> None:
        while not self._is_stopped and not self._is_lost:
            self.contender.pause(self._renew_at - time.monotonic(), self._wake_reader)
            if not self._is_stopped and (self.contender.wants_renewal or time.monotonic() >= self._renew_at):
                self._renew()

    def _renew(self) -> None:
        asked_at = time.monotonic()
        try:
            renewed = self.seconds_left > 0 and self.contender.renew()
        except LockUnavailable as error:
            self._retry(error)
            return
        # An answer that came too late is a loss too: the body may already have seen `is_lost`.
        if not renewed or self.seconds_left <= 0:
            self._lose()
            return
        self._deadline = asked_at + self.contender.ttl
        self._renew_at = asked_at + self.contender.ttl / RENEWALS_PER_LEASE
        self._retry_seconds = RETRY_FIRST_SECONDS

    def _retry(self, error: LockUnavailable) -> None:
        """Try again soon; the lease stays valid until it expires."""
        logger.warning("lock %r was not renewed, %.1f s are left: %s", self.contender.name, self.seconds_left, error)
        self._renew_at = time.monotonic() + min(self._retry_seconds, self.seconds_left)
        self._retry_seconds = min(2 * self._retry_seconds, RETRY_CAP_SECONDS)

    def _lose(self) -> None:
        self._is_lost = True
        logger.error("lock %r was lost: somebody else may hold it now", self.contender.name)
        if self.on_lost is not None:
            try:
                self.on_lost()
            except Exception:
                logger.exception("lock %r: its on_lost failed", self.contender.name)
