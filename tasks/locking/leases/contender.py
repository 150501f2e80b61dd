"""The interface of a named-lock backend: one party, from asking for a lock to releasing it."""

import os
import secrets
import select
import socket
from abc import ABC, abstractmethod
from collections.abc import Collection

from tasks.locking.leases.holder import Holder


class Contender(ABC):
    """One party to one lock, which takes it at most once. Every method but `close` may raise LockUnavailable."""

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
        """While the lock is held: wait until `wake_fd` is readable, `seconds` are over, or renewal is urgent."""
        select.select([wake_fd], [], [], max(0.0, seconds))

    @property
    def wants_renewal(self) -> bool:
        """True when something happened that needs a renewal at once."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Close every connection. Raises nothing."""
