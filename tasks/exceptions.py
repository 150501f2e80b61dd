"""Errors of the queue; an exception's docstring is its default message."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tasks.locking.named.holder import Holder


class RowlockError(Exception):
    """Rowlock could not do what was asked."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or type(self).__doc__)


# TypeError too: the framework's own backends raise it for values that JSON cannot hold.
class InvalidArguments(RowlockError, ValueError, TypeError):
    """The task's arguments cannot be stored as JSON."""


class InvalidSchedule(RowlockError, ValueError):
    """This schedule has no times: pass a cron expression or an interval, and a known time zone."""


class UnknownSchedule(RowlockError, LookupError):
    """No schedule has this name."""


class ScheduleRefused(RowlockError):
    """The schedule cannot be changed so."""


class UnknownTask(RowlockError, LookupError):
    """No task function is registered under this path."""


class PayloadLocked(RowlockError):
    """It is encrypted with a key that this process does not have: add that key to ROWLOCK_PAYLOAD_KEYS here."""


class NotArchived(RowlockError, LookupError):
    """No archived task has this id."""


class InternalTask(RowlockError):
    """This task belongs to a page of its own, and is asked for there."""


class LostClaim(RowlockError):
    """The task is no longer held by this worker: it was recovered, requeued or cancelled meanwhile."""


class Convicted(RowlockError):
    """This worker was declared dead; it must give up its work and start under a new id."""


class StaleVersion(RowlockError):
    """The row was changed by somebody else since it was read."""


class Busy(RowlockError):
    """Another session holds the row; nothing was changed."""


class KeyBusy(Busy):
    """Another transaction holds up the unique key; nothing was enqueued."""


class Abandoned(RowlockError):
    """The worker died while it ran this attempt."""


class TimedOut(RowlockError):
    """The attempt ran past the task's timeout; its worker process was ended."""


class Unstorable(RowlockError):
    """PostgreSQL cannot store the outcome of this attempt."""


class PooledSession(RowlockError):
    """A transaction-pooling proxy stands before the database: set DIRECT_DATABASE_URL to the same database past it."""


class TooFewConnections(RowlockError):
    """The server does not allow this worker the connections that it needs."""


class LockHeld(RowlockError):
    """Somebody else holds the lock. `holder` tells who; None when that one has just let go."""

    def __init__(self, message: str = "", holder: "Holder | None" = None) -> None:
        super().__init__(message)
        self.holder = holder


class LockLost(RowlockError):
    """The lock was lost while it was held: somebody else may have taken it. Undo or fence off what was done since."""


class LockCycle(RowlockError):
    """Waiting for this lock would never end: its holder waits for one that is held here."""


class LockUnavailable(RowlockError):
    """The server that keeps the lock does not answer; whether the lock is held is not known."""
