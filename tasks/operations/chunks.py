"""Verbs that change task rows chunk by chunk, without waiting for locked rows."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

from django.db import connection
from django.utils.translation import gettext as _

from tasks.diagnosis.finding import describe_lock
from tasks.locking import rowlocks
from tasks.locking.rowlocks import RowLock
from tasks.models import Task
from tasks.operations.filters import TaskFilter, among
from tasks.operations.verb import (
    AT_ONCE,
    CHANGED,
    LOCKED,
    MISSING,
    NO_SETTINGS,
    UNMATCHED,
    Progress,
    Refusal,
    Result,
    Settings,
    Spread,
    Verb,
)
from tasks.queue import recovery
from tasks.queue.presence import WorkerState
from tasks.support import audit
from tasks.support.audit import Change, Who
from tasks.support.database import fetch, transaction

CHUNK = 1000

# Rows are never waited for; this is for a lock on the whole table (ALTER TABLE, VACUUM FULL).
LIMIT_WAITS = "SET LOCAL lock_timeout = '2s'"


@contextmanager
def short_waits(*, rollback: bool = False) -> Iterator[None]:
    """A transaction that fails with 55P03 rather than wait for a lock; with `rollback` it is rolled back."""
    with transaction(connection, rollback=rollback):
        with connection.cursor() as cursor:
            cursor.execute(LIMIT_WAITS)
        yield


class TaskAction(Verb):
    """A verb that locks rows, refuses some of them and changes the others.

    With `checks_workers`, `dead` and `waiting` have the workers that are dead and those that may come back.
    """

    checks_workers: ClassVar[bool] = False

    def __init__(self, who: Who, settings: Settings = NO_SETTINGS, spread: Spread = AT_ONCE) -> None:
        super().__init__(who, settings, spread)
        self.dead: frozenset[str] = frozenset()
        self.waiting: dict[str, WorkerState] = {}

    @abstractmethod
    def refusal(self, task: Task) -> Refusal | None:
        """The reason to leave this locked row as it is; None lets it pass."""

    @abstractmethod
    def write(self, tasks: list[Task], result: Result) -> None:
        """Change the rows that passed, write one intervention each, and add them to `result`."""

    def perform(
        self, chosen: TaskFilter, *, versions: Mapping[int, int] | None, dry_run: bool, progress: Progress
    ) -> Result:
        if self.checks_workers:
            self._find_dead_workers(chosen, dry_run=dry_run)
        ids = chosen.selected_ids()
        result = Result()
        for start in range(0, len(ids), CHUNK):
            with short_waits(rollback=dry_run):
                self._perform_chunk(chosen, ids[start : start + CHUNK], versions or {}, result)
            done = min(start + CHUNK, len(ids))
            if not progress(done, len(ids)):
                result.unreached = len(ids) - done
                break
        return result

    def change(
        self, statement: str, tasks: list[Task], params: Mapping[str, object] | None = None, *, action: str = ""
    ) -> list[int]:
        """Run the statement on these rows and audit each changed one; returns their ids."""
        rows = fetch(connection, statement, {"ids": [task.id for task in tasks], **(params or {})})
        after = {row["id"]: row["version"] for row in rows}
        changes = [Change(audit.task(task.id), task.version, after[task.id]) for task in tasks if task.id in after]
        audit.record(connection, self.who, action or self.name, changes, self.settings.reason)
        return list(after)

    def is_stale(self, task: Task) -> bool:
        """True if the task's worker is dead."""
        return task.claimed_by in self.dead

    def _find_dead_workers(self, chosen: TaskFilter, *, dry_run: bool) -> None:
        """Find dead workers before any row is locked, because the two checks are 0.3 s apart."""
        if chosen.queryset().processing().exists():
            sweep = recovery.recover(connection, limit=0, dry_run=dry_run)
            self.dead = frozenset(sweep.dead)
            self.waiting = {state.id: state for state in sweep.waiting}

    def _perform_chunk(
        self, chosen: TaskFilter, ids: Sequence[int], versions: Mapping[int, int], result: Result
    ) -> None:
        rows = chosen.criteria(Task.objects.filter(among(ids))).order_by("id")
        locked = list(rows.select_for_update(no_key=True, skip_locked=True))
        result.refused |= _passed_over(chosen, set(ids) - {task.id for task in locked})
        passed = []
        for task in locked:
            refusal = _refusal_of_change(task, versions) or self.refusal(task)
            if refusal:
                result.refused[task.id] = refusal
            else:
                passed.append(task)
        if passed:
            self.write(passed, result)


def _passed_over(chosen: TaskFilter, ids: set[int]) -> dict[int, Refusal]:
    """Refusals of rows that were not locked. A selection by conditions alone ignores rows that no longer match."""
    if not ids:
        return {}
    existing = set(Task.objects.filter(among(ids)).values_list("id", flat=True))
    locked = list(chosen.criteria(Task.objects.filter(among(ids))))
    holders = rowlocks.lockers(Task, [task.id for task in locked], connection)
    refused = {task.id: _refusal_of_lock(task, holders.get(task.id)) for task in locked}
    if chosen.ids:
        refused |= dict.fromkeys(existing - set(refused), Refusal.of_id(UNMATCHED))
        refused |= dict.fromkeys(ids - existing, Refusal.of_id(MISSING))
    return refused


def _refusal_of_lock(task: Task, lock: RowLock | None) -> Refusal:
    """The refusal of a locked row, with its holder's name if that can still be seen."""
    refusal = Refusal.of_row(task, LOCKED)
    if lock is None:
        return refusal
    return replace(refusal, sentence=_("busy: {holder}; try again").format(holder=describe_lock(lock)))


def _refusal_of_change(task: Task, versions: Mapping[int, int]) -> Refusal | None:
    seen = versions.get(task.id, task.version)
    return None if seen == task.version else Refusal.of_row(task, CHANGED, seen=seen)
