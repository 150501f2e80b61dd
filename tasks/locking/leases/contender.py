"""What a backend of named locks must do: one party's way from asking for a lock to letting go of it."""

import os
import secrets
import select
import socket
from abc import ABC, abstractmethod
from collections.abc import Collection

from tasks.locking.leases.holder import Holder


class Contender(ABC):
    """One party to one lock, for one holding of it at most. Every method but `close` may raise LockUnavailable."""

    def __init__(self, name: str, ttl: float) -> None:
        self.name = name
        self.ttl = ttl
        self.hostname = socket.gethostname()
        self.pid = os.getpid()
        self.owner = self.new_owner()
        self.fence: int | None = None

    def new_owner(self) -> str:
        """A name of this party alone, which tells a person where it is."""
        return f"{self.hostname}:{self.pid}:{secrets.token_hex(4)}"

    @abstractmethod
    def try_acquire(self) -> int | None:
        """Take the lock if it is to be had; its fence, or None."""

    @abstractmethod
    def holder(self) -> Holder | None:
        """Who holds the lock now; None when nobody does."""

    @abstractmethod
    def start_waiting(self, holds: Collection[int]) -> None:
        """Be known as one who waits and holds these fences meanwhile, and hear of releases from now on.

        Raises LockCycle when the wait would never end.
        """

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Return when it is worth trying again, after `seconds` at most."""

    @abstractmethod
    def stop_waiting(self) -> None:
        """Wait no more, with the lock or without."""

    @abstractmethod
    def renew(self) -> bool:
        """Begin the lease anew; False when the lock is not ours any more."""

    @abstractmethod
    def release(self) -> bool:
        """Let go; False when the lock was not ours any more."""

    def pause(self, seconds: float, wake_fd: int) -> None:
        """While it is held: let time pass until `wake_fd` is readable, or something asks for a renewal at once."""
        select.select([wake_fd], [], [], max(0.0, seconds))

    @property
    def wants_renewal(self) -> bool:
        """Whether something has happened that only a renewal can answer."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Give up every connection. Raises nothing."""
