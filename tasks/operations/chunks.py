"""The result of an action, with its refusals."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from django.db import connection
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from tasks.diagnosis.finding import describe_lock
from tasks.locking import rowlocks
from tasks.locking.rowlocks import RowLock
from tasks.models import Task, TaskQuerySet
from tasks.operations.filters import TaskFilter, among
from tasks.queue import recovery
from tasks.queue.presence import WorkerState
from tasks.support.audit import Who
from tasks.support.database import transaction


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
    Code.MISSING: gettext_lazy("there is no such task; it was pruned, or the id is wrong"),
    Code.UNMATCHED: gettext_lazy("it does not match the filter that was given with its id"),
    Code.LOCKED: gettext_lazy("another session holds its row at this moment; try again"),
    Code.CHANGED: gettext_lazy(
        "it changed since you looked (version {seen}): it is {status} at version {version} now; look again"
    ),
    Code.READY: gettext_lazy("it is READY already and waits for a worker"),
    Code.LIVE: gettext_lazy("worker {claimed_by} is alive and works on it; let it finish, or cancel the task"),
    Code.WAITING: gettext_lazy(
        "worker {claimed_by} does not answer, and has {seconds} s left to come back; try again then"
    ),
    Code.HELD: gettext_lazy("worker {claimed_by} holds it; only a task that waits to run can be edited"),
    Code.COMPLETED: gettext_lazy("it has completed; to have its effect again, enqueue it anew"),
    Code.FAILED: gettext_lazy("it failed for good before its worker could end it"),
    Code.FINISHED: gettext_lazy(
        "it is {status} already; only a task that waits to run can be edited, so requeue it first"
    ),
    Code.ALREADY: gettext_lazy("it was cancelled before"),
    Code.NOT_DEAD: gettext_lazy(
        "its worker is not dead: not yet, or it is alive, or somebody took the task back already"
    ),
    Code.QUARANTINED: gettext_lazy("it is in quarantine already"),
    Code.NOT_QUARANTINED: gettext_lazy("it does not wait in quarantine"),
    Code.NO_ORIGIN: gettext_lazy("the audit does not say where it came from; move it with `edit_tasks --set-queue`"),
    Code.EXHAUSTED: gettext_lazy("attempt {attempt} leaves no room for more (at most 32767); enqueue it anew"),
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


CHUNK = 1000
Selection = Iterable[int] | TaskFilter
# Called between chunks with the number of rows done, and of all rows (None: unknown); False stops the action.
Progress = Callable[[int, int | None], bool]

# Rows are never waited for; this is for a lock on the whole table (ALTER TABLE, VACUUM FULL).
LIMIT_WAITS = "SET LOCAL lock_timeout = '2s'"


@contextmanager
def short_waits(*, rollback: bool = False) -> Iterator[None]:
    """A transaction that fails with 55P03 rather than wait for a lock; with `rollback` it is rolled back."""
    with transaction(connection, rollback=rollback):
        with connection.cursor() as cursor:
            cursor.execute(LIMIT_WAITS)
        yield


def go_on(done: int, total: int | None) -> bool:
    """The default progress, which never stops the action."""
    return True


class TaskAction(ABC):
    """The refusals and the writes of an action. One instance serves one call of `perform`."""

    name: str

    def __init__(self, who: Who, reason: str = "") -> None:
        self.who = who
        self.reason = reason
        self.dead: frozenset[str] = frozenset()
        self.waiting: dict[str, WorkerState] = {}

    @abstractmethod
    def refusal(self, task: Task) -> Refusal | None:
        """The reason to leave this locked row as it is; None lets it pass."""

    @abstractmethod
    def write(self, tasks: list[Task], result: Result) -> None:
        """Change the rows that passed, write one intervention each, and add them to `result`."""

    def is_stale(self, task: Task) -> bool:
        """True if the task's worker is dead."""
        return task.claimed_by in self.dead

    def look_for_dead(self, tasks: TaskQuerySet, *, dry_run: bool) -> None:
        """Find dead workers before any row is locked, because the two checks are 0.3 s apart."""
        if tasks.processing().exists():
            sweep = recovery.recover(connection, limit=0, dry_run=dry_run)
            self.dead = frozenset(sweep.dead)
            self.waiting = {state.id: state for state in sweep.waiting}


def perform(
    action: TaskAction,
    selection: Selection,
    *,
    versions: Mapping[int, int] | None = None,
    dry_run: bool = False,
    progress: Progress = go_on,
) -> Result:
    """Do `action` to every selected task that allows it.

    `versions`: the version of each task that the operator saw; a row that changed since is refused. A dry run selects
    and locks the same rows, writes the same changes, and rolls back.
    """
    chosen = TaskFilter.of(selection)
    ids = chosen.selected_ids()
    result = Result()
    for start in range(0, len(ids), CHUNK):
        with short_waits(rollback=dry_run):
            _perform_chunk(action, chosen, ids[start : start + CHUNK], versions or {}, result)
        looked_at = min(start + CHUNK, len(ids))
        if not progress(looked_at, len(ids)):
            result.unreached = len(ids) - looked_at
            break
    return result


def _perform_chunk(
    action: TaskAction, chosen: TaskFilter, ids: Sequence[int], versions: Mapping[int, int], result: Result
) -> None:
    locked = list(
        chosen.criteria(Task.objects.filter(among(ids))).order_by("id").select_for_update(no_key=True, skip_locked=True)
    )
    result.refused |= _passed_over(chosen, set(ids) - {task.id for task in locked})
    passed = []
    for task in locked:
        refusal = _refusal_of_change(task, versions) or action.refusal(task)
        if refusal:
            result.refused[task.id] = refusal
        else:
            passed.append(task)
    if passed:
        action.write(passed, result)


def _passed_over(chosen: TaskFilter, ids: set[int]) -> dict[int, Refusal]:
    """Refusals of rows that were not locked. A selection by conditions alone ignores rows that no longer match."""
    if not ids:
        return {}
    existing = set(Task.objects.filter(among(ids)).values_list("id", flat=True))
    refused = _locked(list(chosen.criteria(Task.objects.filter(among(ids)))))
    if chosen.ids:
        refused |= dict.fromkeys(existing - set(refused), Refusal.of_id(Code.UNMATCHED))
        refused |= dict.fromkeys(ids - existing, Refusal.of_id(Code.MISSING))
    return refused


def _locked(tasks: list[Task]) -> dict[int, Refusal]:
    """Refusals that name the holders of these rows, if they can still be seen."""
    holders = rowlocks.lockers(Task, [task.id for task in tasks], connection)
    return {task.id: _refusal_of_lock(task, holders.get(task.id)) for task in tasks}


def _refusal_of_lock(task: Task, lock: RowLock | None) -> Refusal:
    refusal = Refusal.of_row(task, Code.LOCKED)
    if lock is None:
        return refusal
    return replace(refusal, sentence=_("busy: {holder}; try again").format(holder=describe_lock(lock)))


def _refusal_of_change(task: Task, versions: Mapping[int, int]) -> Refusal | None:
    seen = versions.get(task.id, task.version)
    return None if seen == task.version else Refusal.of_row(task, Code.CHANGED, seen=seen)
