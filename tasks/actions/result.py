"""The result of an action, with its refusals."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from django.utils.translation import gettext_lazy as _

from tasks.models import Task


class Code(StrEnum):
    """The reason for a refusal, for scripts; `SENTENCES` says the same to people."""

    MISSING = "missing"
    UNMATCHED = "unmatched"
    LOCKED = "locked"
    CHANGED = "changed"
    READY = "ready"
    LIVE = "live"
    HELD = "held"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    FINISHED = "finished"
    ALREADY = "already"
    EXHAUSTED = "exhausted"
    NOT_DEAD = "not_dead"
    QUARANTINED = "quarantined"
    NOT_QUARANTINED = "not_quarantined"
    NO_ORIGIN = "no_origin"


SENTENCES = {
    Code.MISSING: _("there is no such task; it was pruned, or the id is wrong"),
    Code.UNMATCHED: _("it does not match the filter that was given with its id"),
    Code.LOCKED: _("another session holds its row at this moment; try again"),
    Code.CHANGED: _(
        "it changed since you looked (version {seen}): it is {status} at version {version} now; look again"
    ),
    Code.READY: _("it is READY already and waits for a worker"),
    Code.LIVE: _("worker {claimed_by} is alive and works on it; let it finish, or cancel the task"),
    Code.WAITING: _("worker {claimed_by} does not answer, and has {seconds} s left to come back; try again then"),
    Code.HELD: _("worker {claimed_by} holds it; only a task that waits to run can be edited"),
    Code.COMPLETED: _("it has completed; to have its effect again, enqueue it anew"),
    Code.FAILED: _("it failed for good before its worker could end it"),
    Code.FINISHED: _("it is {status} already; only a task that waits to run can be edited, so requeue it first"),
    Code.ALREADY: _("it was cancelled before"),
    Code.NOT_DEAD: _("its worker is not dead: not yet, or it is alive, or somebody took the task back already"),
    Code.QUARANTINED: _("it is in quarantine already"),
    Code.NOT_QUARANTINED: _("it does not wait in quarantine"),
    Code.NO_ORIGIN: _("the audit does not say where it came from; move it with `edit_tasks --set-queue`"),
    Code.EXHAUSTED: _("attempt {attempt} leaves no room for more (at most 32767); enqueue it anew"),
}


@dataclass(frozen=True)
class Refusal:
    """One task that was left as it is: the code for scripts, the sentence for people, and the task's state."""

    code: Code
    sentence: str
    status: str | None = None
    version: int | None = None

    @classmethod
    def of_row(cls, task: Task, code: Code, **details: Any) -> "Refusal":
        """The refusal of a row that was read; `details` and the row's columns fill the sentence."""
        known = {
            "status": task.status,
            "version": task.version,
            "claimed_by": task.claimed_by,
            "attempt": task.attempt,
        }
        return cls(code, str(SENTENCES[code]).format(**known, **details), task.status, task.version)

    @classmethod
    def of_id(cls, code: Code) -> "Refusal":
        """The refusal of an id whose row could not be read."""
        return cls(code, str(SENTENCES[code]))


@dataclass
class Result:
    """The outcome for the tasks of one action.

    `done`: ids that were changed (in a dry run: would be). `asked`: ids whose live worker was asked to end them and has
    not yet. `refused`: the reason for each id that was left as it is. `unreached`: the number of tasks skipped because
    the caller stopped the action between two chunks.
    """

    done: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    refused: dict[int, Refusal] = field(default_factory=dict)
    unreached: int = 0
