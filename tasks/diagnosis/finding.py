"""Verdicts and findings, and texts that pages share: how a worker ended, who holds a row, the command of a button."""

import shlex
from dataclasses import dataclass
from typing import Literal

from django.db import models
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from tasks.locking.rowlocks import Hold, Locker, RowLock
from tasks.queue.presence import Life
from tasks.support.durations import spoken


class Verdict(models.TextChoices):
    """Each comment says when it applies. The verdict on a READY task is its first reason not to run, in this order."""

    KEY_MISSING = "key_missing", gettext_lazy("Key missing")  # a live worker had no key for its arguments
    WAITING = "waiting", gettext_lazy("Waiting until")  # run_after is ahead
    HELD_BY_KEY = "held_by_key", gettext_lazy("Held by key")  # an earlier task of its key is unfinished
    WAITING_FOR_SLOT = "waiting_for_slot", gettext_lazy("Waiting for a slot")  # as many run as its limit allows
    WAITING_FOR_RATE = "waiting_for_rate", gettext_lazy("Waiting for its rate")  # as many have begun as its rate allows
    PAUSED = "paused", gettext_lazy("Paused")  # its queue or its key is paused
    NO_WORKER = "no_worker", gettext_lazy("No worker for queue")  # no live worker serves its queue
    UNKNOWN_TASK = "unknown_task", gettext_lazy("No worker knows task")  # no live worker of its queue has the function
    ROW_LOCKED = "row_locked", gettext_lazy("Row locked")  # a session holds the row, and SKIP LOCKED skips it
    READY = "ready", gettext_lazy("Ready")  # none of these
    CANCELLING = "cancelling", gettext_lazy("Cancelling")  # its worker was asked to end it and has not done so yet
    RUNNING = "running", gettext_lazy("Running")  # its live worker runs it
    IN_BATCH = "in_batch", gettext_lazy("In batch")  # claimed, not started
    WORKER_SILENT = "worker_silent", gettext_lazy("Worker silent")  # no heartbeat for a lease, presence not lost
    WORKER_DEAD = "worker_dead", gettext_lazy("Worker dead")  # presence gone, or convicted
    COMPLETED = "completed", gettext_lazy("Completed")
    FAILED = "failed", gettext_lazy("Failed")
    CANCELLED = "cancelled", gettext_lazy("Cancelled")


# The verdict on a task by the life of its worker, if that one does not work on it.
OF_LIFE = {
    Life.DEAD: Verdict.WORKER_DEAD,
    Life.MISSING: Verdict.WORKER_DEAD,
    Life.SILENT: Verdict.WORKER_SILENT,
    Life.RESTARTED: Verdict.WORKER_SILENT,
}

# `Worker.stop_reason` as pages show it; a reason that is not here is shown as it is.
ENDINGS = {
    "stopped": gettext_lazy("stopped"),
    "crashed": gettext_lazy("crashed"),
    "convicted": gettext_lazy("convicted"),
    "stop": gettext_lazy("killed: it did not stop"),
    "cancel": gettext_lazy("killed: its task was cancelled"),
    "timeout": gettext_lazy("killed: its task took too long"),
}

# Verdicts that may need a person.
STUCK = frozenset(
    {
        Verdict.KEY_MISSING,
        Verdict.NO_WORKER,
        Verdict.UNKNOWN_TASK,
        Verdict.ROW_LOCKED,
        Verdict.WORKER_SILENT,
        Verdict.WORKER_DEAD,
    }
)


@dataclass(frozen=True)
class Link:
    """A verdict's reference: a task or worker by id, a queue, ordering key or limit by name, a session by pid."""

    kind: Literal["task", "worker", "queue", "key", "limit", "session"]
    target: str


@dataclass(frozen=True)
class Finding:
    """A verdict on one task: the sentence with its evidence, its references, and the command that would help.

    `also` holds the further reasons why a READY task does not run.
    """

    verdict: Verdict
    sentence: str
    links: tuple[Link, ...] = ()
    command: str = ""
    also: tuple["Finding", ...] = ()

    @property
    def is_stuck(self) -> bool:
        """True if the task may need a person."""
        return self.verdict in STUCK


def ending_of(reason: str | None) -> str:
    """How a worker ended, in words; empty if no reason is known."""
    return str(ENDINGS.get(reason or "", reason or ""))


def describe_lock(lock: RowLock) -> str:
    """The row's holder in words."""
    if lock.hold is Hold.UNCERTAIN:
        return _("A session holds the row; which one is uncertain")
    if lock.hold is Hold.TOUCHED:
        return _("Touched (key share) by %(lockers)s") % {"lockers": ", ".join(map(describe_locker, lock.lockers))}
    return _("Held by %(lockers)s") % {"lockers": ", ".join(map(describe_locker, lock.lockers))}


def locked_by(lock: RowLock) -> str:
    """Why a row was left as it is: `locked by pid 6942 (psql), in a transaction open for 12 s`."""
    if lock.hold is Hold.UNCERTAIN:
        return _("locked by a session; which one is uncertain")
    return _("locked by %(lockers)s") % {"lockers": ", ".join(map(describe_locker, lock.lockers))}


def describe_locker(locker: Locker) -> str:
    if locker.pid is None:
        return _("a prepared transaction")
    values = {"pid": locker.pid, "name": locker.application_name or _("unnamed")}
    who = _("pid %(pid)d (%(name)s)") % values
    if locker.transaction_seconds is None:
        return who
    return _("%(who)s, in a transaction open for %(age)s") % {"who": who, "age": spoken(locker.transaction_seconds)}


def command(*words: str) -> str:
    """The command line for an operator, quoted for a shell."""
    return shlex.join(("python", "manage.py", *words))
