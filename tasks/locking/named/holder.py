"""Holders and waiters of named locks, as read at one moment."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from tasks.support.durations import spoken


class Life(StrEnum):
    """The state of a lock's holder; the comment says when the lock becomes free."""

    FREE = "free"  # at once
    EXPIRED = "expired"  # at once: its lease has expired
    MISSING = "missing"  # after a second check 0.3 s later: its session is gone
    RESTARTED = "restarted"  # when its lease expires: the database restarted, so a missing session proves nothing
    UNSEEN = "unseen"  # when its lease expires: only the lease shows that it lives
    ALIVE = "alive"  # when it releases the lock


@dataclass(frozen=True)
class Holder:
    """One named lock. Durations are in seconds, by the clock of the server that keeps the lock.

    While `life` is FREE, `hostname` and `pid` are those of the last holder and `owner` is empty. A bare advisory lock,
    taken by another program, has no `fence` and no expiry.
    """

    name: str
    backend: str
    life: Life
    owner: str = ""
    fence: int | None = None
    hostname: str = ""
    pid: int | None = None
    acquired_at: datetime | None = None
    renewed_at: datetime | None = None
    expires_at: datetime | None = None
    held_seconds: float | None = None
    silent_seconds: float | None = None  # since its last renewal
    seconds_left: float | None = None

    @property
    def is_held(self) -> bool:
        """True if others have to wait."""
        return self.life not in (Life.FREE, Life.EXPIRED)

    @property
    def is_gone(self) -> bool:
        """True if the holder is known to be dead: its lease expired or its session ended."""
        return self.life in (Life.EXPIRED, Life.MISSING)

    @property
    def may_be_freed(self) -> bool:
        """True if a person may free the lock: its holder is gone or cannot be seen."""
        return self.is_gone or self.life is Life.UNSEEN

    @property
    def who(self) -> str:
        """Short text for the holder, host and process first."""
        place = f"{self.hostname} pid {self.pid}" if self.hostname and self.pid else self.hostname
        return f"{place} ({self.owner})" if place else self.owner


@dataclass(frozen=True)
class Waiter:
    """A party that waits for the lock `name`. `holds` are the fences of the locks that it holds meanwhile."""

    name: str
    owner: str
    hostname: str = ""
    pid: int | None = None
    holds: frozenset[int] = field(default_factory=frozenset)
    since: datetime | None = None
    waiting_seconds: float | None = None


def holder_data(holder: Holder) -> dict[str, Any]:
    """The holder for scripts."""
    return {
        "owner": holder.owner,
        "hostname": holder.hostname,
        "pid": holder.pid,
        "fence": holder.fence,
        "since": holder.acquired_at.isoformat() if holder.acquired_at else None,
        "life": holder.life,
        "seconds_left": None if holder.seconds_left is None else round(holder.seconds_left, 3),
    }


def held_sentence(name: str, holder: Holder | None) -> str:
    """The reason why the lock is not free, and the next step."""
    if holder is None or not holder.is_held:
        return f"The lock {name!r} was held a moment ago; its holder has just let go. Try again."
    since = f" since {holder.acquired_at:%Y-%m-%d %H:%M:%S %Z}" if holder.acquired_at else ""
    fence = f", fence {holder.fence}" if holder.fence else ""
    return f"The lock {name!r} is held by {holder.who}{since}{fence}. {_advice(holder)}"


def _advice(holder: Holder) -> str:
    left = spoken(holder.seconds_left or 0)
    match holder.life:
        case Life.MISSING:
            return "Its session has just ended: try again in a second."
        case Life.RESTARTED:
            return f"The database restarted; unless it comes back, the lock is free in {left}."
        case Life.UNSEEN if holder.seconds_left is not None:
            return f"Unless it renews its lease, the lock is free in {left}. Try again later, or wait for it."
        case _:
            return "It is alive: try again later, or wait for it."
