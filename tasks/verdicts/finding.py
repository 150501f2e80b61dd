"""The closed list of verdicts, and the finding that explains one."""

from dataclasses import dataclass
from typing import Literal

from django.db import models
from django.utils.translation import gettext_lazy as _


class Verdict(models.TextChoices):
    """Each comment says when. The first of a READY task's reasons not to run is its verdict, in this order."""

    WAITING = "waiting", _("Waiting until")  # run_after is ahead
    HELD_BY_KEY = "held_by_key", _("Held by key")  # an earlier task of its key is unfinished
    PAUSED = "paused", _("Paused")  # its queue is paused
    NO_WORKER = "no_worker", _("No worker for queue")  # no live worker serves its queue
    UNKNOWN_TASK = "unknown_task", _("No worker knows task")  # no live worker of its queue has the function
    ROW_LOCKED = "row_locked", _("Row locked")  # a session holds the row, and SKIP LOCKED skips it
    READY = "ready", _("Ready")  # none of these
    CANCELLING = "cancelling", _("Cancelling")  # its worker was asked to end it and has not done so yet
    RUNNING = "running", _("Running")  # its live worker runs it
    IN_BATCH = "in_batch", _("In batch")  # claimed, not started
    WORKER_SILENT = (
        "worker_silent",
        _("Worker silent"),
    )  # no heartbeat for a lease, presence not lost
    WORKER_DEAD = "worker_dead", _("Worker dead")  # presence gone, or convicted
    COMPLETED = "completed", _("Completed")
    FAILED = "failed", _("Failed")
    CANCELLED = "cancelled", _("Cancelled")


# Verdicts that may need a person.
STUCK = frozenset(
    {Verdict.NO_WORKER, Verdict.UNKNOWN_TASK, Verdict.ROW_LOCKED, Verdict.WORKER_SILENT, Verdict.WORKER_DEAD}
)


@dataclass(frozen=True)
class Link:
    """A verdict's reference: a task or worker by id, a queue or key by name, a session by pid."""

    kind: Literal["task", "worker", "queue", "key", "session"]
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
