"""The interface of a named-lock backend, cycles of waiters, and the renewal of a held lease."""

import logging
import os
import secrets
import select
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager

from tasks.exceptions import LockCycle, LockUnavailable
from tasks.locking.named.holder import Holder, Waiter

logger = logging.getLogger(__name__)

RENEWALS_PER_LEASE = 3
RETRY_FIRST_SECONDS = 0.05
RETRY_CAP_SECONDS = 1.0


class Contender(ABC):
    """One party to one lock, which takes it at most once. Call all but `pause` and `close` inside `explained()`."""

    def __init__(self, name: str, ttl: float) -> None:
        self.name = name
        self.ttl = ttl
        self.hostname = socket.gethostname()
        self.pid = os.getpid()
        self.owner = self.new_owner()
        self.fence: int | None = None

    def new_owner(self) -> str:
        """A unique name for this party, with its host and process id."""
        return f"{self.hostname}:{self.pid}:{secrets.token_hex(4)}"

    @property
    def is_cut_off(self) -> bool:
        """True if its connection broke: the lease needs a renewal at once."""
        return False

    @abstractmethod
    def explained(self) -> AbstractContextManager[None]:
        """A block in which the backend's own errors become LockUnavailable."""

    @abstractmethod
    def try_acquire(self) -> int | None:
        """Take the lock if it is free; returns its fence, or None."""

    @abstractmethod
    def holder(self) -> Holder | None:
        """The current holder; None when the lock is free."""

    @abstractmethod
    def start_waiting(self, holds: Collection[int]) -> None:
        """Register as a waiter that holds these fences, and subscribe to releases. Raises LockCycle."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Return when it is worth trying again, after at most `seconds`."""

    @abstractmethod
    def stop_waiting(self) -> None:
        """End the wait, with or without the lock."""

    @abstractmethod
    def renew(self) -> bool:
        """Extend the lease; False when the lock is no longer ours."""

    @abstractmethod
    def release(self) -> bool:
        """Release; False when the lock was no longer ours."""

    def pause(self, seconds: float, wake_fd: int) -> None:
        """While the lock is held: wait until `wake_fd` is readable, `seconds` are over, or the connection breaks."""
        select.select([wake_fd], [], [], max(0.0, seconds))

    @abstractmethod
    def close(self) -> None:
        """Close every connection. Raises nothing."""


def refuse_cycle(wanted: str, holds: Collection[int], held: Iterable[Holder], waiters: Iterable[Waiter]) -> None:
    """Raise LockCycle, naming every lock of the cycle, if a party with these fences would wait for `wanted` for ever.

    Args:
        wanted: the lock that the party is about to wait for.
        holds: the fences of the locks that it holds.
        held: every lock.
        waiters: all current waiters; each is known by the fences that it holds.
    """
    fences = {holder.name: holder.fence for holder in held if holder.fence and holder.is_held and not holder.is_gone}
    cycle = find_cycle(wanted, holds, fences, list(waiters))
    if cycle == [wanted]:
        raise LockCycle(
            f"The lock {wanted!r} is held by this very thread or by the command that started it: waiting for it would "
            "never end. Take it once, around both places."
        )
    if cycle:
        raise LockCycle(
            f"Waiting for the lock {wanted!r} would never end: {' → '.join([*cycle, wanted])} form a cycle, in which "
            f"the holder of each waits for the next, and {cycle[-1]!r} is held here. Let go of it first, or take the "
            "locks in one order everywhere."
        )


def find_cycle(
    wanted: str, holds: Collection[int], fences: Mapping[str, int], waiters: Collection[Waiter]
) -> list[str] | None:
    """The names from the lock `wanted` to one whose fence is in `holds`; None without a cycle.

    >>> find_cycle("b", {1}, {"a": 1, "b": 2}, [Waiter("a", "other", holds=frozenset({2}))])
    ['b', 'a']
    >>> find_cycle("a", {1}, {"a": 1}, [])
    ['a']
    """
    paths, seen = [[wanted]], {wanted}
    while paths:
        path = paths.pop()
        fence = fences.get(path[-1])
        if fence in holds:
            return path
        next_names = {waiter.name for waiter in waiters if fence in waiter.holds} - seen
        seen |= next_names
        paths += [[*path, name] for name in sorted(next_names)]
    return None


class Renewer:
    """Renews one lease until it is stopped or the lock is lost.

    The lease counts from when its renewal was *asked for*, by this machine's monotonic clock, so it ends here first. A
    process that was frozen past its lease sees `is_lost` before anything else runs.
    """

    _retry_seconds: float

    def __init__(self, contender: Contender, asked_at: float, on_lost: Callable[[], object] | None) -> None:
        self.contender = contender
        self.on_lost = on_lost
        self._is_lost = False
        self._is_stopped = False
        self._count_from(asked_at)
        self._wake_reader, self._wake_writer = os.pipe()
        self._thread = threading.Thread(target=self._run, name=f"lock {contender.name}", daemon=True)
        self._thread.start()

    @property
    def is_lost(self) -> bool:
        return self.seconds_left <= 0

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
            if not self._is_stopped and (self.contender.is_cut_off or time.monotonic() >= self._renew_at):
                self._renew()

    def _renew(self) -> None:
        asked_at = time.monotonic()
        try:
            with self.contender.explained():
                is_renewed = not self.is_lost and self.contender.renew()
        except LockUnavailable as error:  # the lease stays valid until it expires
            name, left = self.contender.name, self.seconds_left
            logger.warning("lock %r was not renewed, %.1f s are left: %s", name, left, error)
            self._renew_at = time.monotonic() + min(self._retry_seconds, left)
            self._retry_seconds = min(2 * self._retry_seconds, RETRY_CAP_SECONDS)
            return
        # An answer that came too late is a loss too: the body may already have seen `is_lost`.
        if is_renewed and not self.is_lost:
            self._count_from(asked_at)
        else:
            self._lose()

    def _count_from(self, asked_at: float) -> None:
        self._deadline = asked_at + self.contender.ttl
        self._renew_at = asked_at + self.contender.ttl / RENEWALS_PER_LEASE
        self._retry_seconds = RETRY_FIRST_SECONDS

    def _lose(self) -> None:
        self._is_lost = True
        logger.error("lock %r was lost: somebody else may hold it now", self.contender.name)
        if self.on_lost is not None:
            try:
                self.on_lost()
            except Exception:
                logger.exception("lock %r: its on_lost failed", self.contender.name)
