"""An operator's verb on tasks: its names, right and settings, and its result. Pages, bulk runs and commands call it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from typing import Any, ClassVar, NamedTuple, Self

from django.db import connection
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy

from tasks.diagnosis.finding import command, locked_by
from tasks.locking import rowlocks
from tasks.models import ArchivedTask, Task, TaskStatus
from tasks.operations.filters import TaskFilter, among
from tasks.queue import recovery, wakeup
from tasks.queue.presence import WorkerState
from tasks.support import audit
from tasks.support.audit import Change, Who
from tasks.support.database import fetch, transaction

Selection = Iterable[int] | TaskFilter
# Called between chunks with the number of rows done, and of all rows (None: unknown); False stops the action.
Progress = Callable[[int, int | None], bool]

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


def go_on(done: int, total: int | None) -> bool:
    """The default progress, which never stops the action."""
    return True


@dataclass(frozen=True)
class Refusal:
    """One task that was left as it is: the code for scripts, the sentence for people, and the task's state."""

    code: str
    sentence: str
    status: str | None = None
    version: int | None = None


class Reason(NamedTuple):
    """Why a task is left as it is: a code for scripts, and a sentence with the row's columns in braces."""

    code: str
    sentence: str | Promise

    def refuse(self, task: Task, **details: Any) -> Refusal:
        """The refusal of a row that was read; its columns and `details` fill the sentence."""
        sentence = str(self.sentence).format_map({**vars(task), **details})
        return Refusal(self.code, sentence, task.status, task.version)


MISSING = Reason("missing", gettext_lazy("the task does not exist: it was pruned, or the id is wrong"))
ARCHIVED = Reason("archived", gettext_lazy("it is archived; its page and `enqueue_task --archived` run it again"))
UNMATCHED = Reason("unmatched", gettext_lazy("it does not match the filter that was given with its id"))
LOCKED = Reason("locked", gettext_lazy("another session holds its row at this moment; try again"))
CHANGED = Reason(
    "changed",
    gettext_lazy("it changed since you looked (version {seen}): it is {status} at version {version} now; review again"),
)
HELD = Reason("held", gettext_lazy("worker {claimed_by} holds it; only a task that waits to run can be edited"))
COMPLETED = Reason("completed", gettext_lazy("it has completed; to have its effect again, enqueue it again"))
FINISHED = Reason(
    "finished",
    gettext_lazy("it is {status} already; only a task that waits to run can be edited, so requeue it first"),
)
EXHAUSTED = Reason(
    "exhausted", gettext_lazy("attempt {attempt} leaves no room for more (at most 32767); enqueue it anew")
)


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


class Share(NamedTuple):
    """The share of one call in an action `of` so many tasks: the tasks `before` it, and the time since the start."""

    of: int
    before: int = 0
    elapsed_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a verb, which a form or a command fills and a bulk run stores; each verb reads its own."""

    reason: str = ""
    force: bool = False
    queue_name: str | None = None
    priority: int | None = None
    run_after: datetime | None = None
    spread_minutes: float | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read the output of `as_json`; what stands beside it is not for a verb."""
        known = {field.name: values[field.name] for field in fields(cls) if field.name in values}
        at = known.get("run_after")
        return cls(**{**known, "run_after": datetime.fromisoformat(at) if at else None})

    def as_json(self) -> dict[str, Any]:
        """The values for a column; times as ISO 8601."""
        return {**asdict(self), "run_after": self.run_after.isoformat() if self.run_after else None}

    def delay(self, place: int, share: Share) -> float:
        """Seconds from now until the task at this place (from 0) is due, when all are spread evenly.

        >>> [Settings(spread_minutes=1).delay(place, Share(of=3)) for place in range(3)]
        [0.0, 20.0, 40.0]
        """
        seconds = 60.0 * (self.spread_minutes or 0)
        return max(0.0, seconds * (share.before + place) / max(1, share.of) - share.elapsed_seconds)


NO_SETTINGS = Settings()


@dataclass
class Verb:
    """One verb, which locks rows, refuses some of them and changes the others. One instance serves one call.

    A subclass defines `write`. `statuses` are the states that it can change, `right` is what a person needs for it, and
    `words` begin its command. `options` are the command's options by setting, `reasons` those to refuse a task by its
    status. With `checks_workers`, `dead` and `waiting` have the workers that are dead and those that may come back.

    Args:
        versions: the version of each task that the operator saw; a row that changed since is refused.
        share: of a call that is a part of a larger action.
        dry_run: select and lock the same rows, write the same changes, and roll back.
    """

    name: ClassVar[str]
    label: ClassVar[str | Promise]
    right: ClassVar[str]
    statuses: ClassVar[tuple[TaskStatus, ...]]
    words: ClassVar[tuple[str, ...]]
    options: ClassVar[dict[str, str]] = {}
    reasons: ClassVar[dict[str, Reason]] = {TaskStatus.PROCESSING: HELD}
    checks_workers: ClassVar[bool] = False

    who: Who
    settings: Settings = NO_SETTINGS
    versions: Mapping[int, int] | None = None
    share: Share | None = None
    dry_run: bool = False
    progress: Progress = go_on
    dead: frozenset[str] = field(default=frozenset(), init=False)
    waiting: dict[str, WorkerState] = field(default_factory=dict, init=False)
    result: Result = field(default_factory=Result, init=False)

    def __post_init__(self) -> None:
        """Raise if it cannot be done with these settings."""

    @classmethod
    def act(cls, selection: Selection, who: Who, settings: Settings = NO_SETTINGS, **fields: Any) -> Result:
        """Perform the verb on every selected task that allows it; `fields` are those of the class."""
        verb, chosen = cls(who, settings, **fields), TaskFilter.of(selection)
        # A filter without conditions, as of no ids, would select every task.
        return Result() if chosen.is_empty else verb.perform(chosen)

    @classmethod
    def command(cls, chosen: TaskFilter, settings: Settings) -> str:
        """The command line that does the same to these tasks."""
        written = settings.as_json()
        if settings.spread_minutes:
            written["spread_minutes"] = f"{settings.spread_minutes}m"
        names = {**cls.options, "reason": "--reason"}
        pairs = [(option, written[name]) for name, option in names.items() if written[name] not in (None, "")]
        return command(*cls.words, *chosen.as_words(), *(str(word) for pair in pairs for word in pair))

    def refusal(self, task: Task) -> Refusal | None:
        """The reason to leave this locked row as it is; None lets it pass."""
        if task.status in self.statuses:
            return None
        return self.reasons.get(task.status, FINISHED).refuse(task)

    def write(self, tasks: list[Task]) -> None:
        """Change the rows that passed, write one intervention each, and add them to the result; workers are woken."""
        raise NotImplementedError

    def perform(self, chosen: TaskFilter) -> Result:
        """Do the work of `act`, chunk by chunk."""
        # Before any row is locked, because the two checks of a dead worker are 0.3 s apart.
        if self.checks_workers and chosen.queryset().processing().exists():
            sweep = recovery.recover(connection, limit=0, dry_run=self.dry_run)
            self.dead = frozenset(sweep.dead)
            self.waiting = {state.id: state for state in sweep.waiting}
        ids = chosen.selected_ids()
        self.share = self.share or Share(of=len(ids))
        for start in range(0, len(ids), CHUNK):
            with short_waits(rollback=self.dry_run):
                self._perform_chunk(chosen, ids[start : start + CHUNK])
            done = min(start + CHUNK, len(ids))
            if not self.progress(done, len(ids)):
                self.result.unreached = len(ids) - done
                break
        return self.result

    def change(
        self, statement: str, tasks: list[Task], params: Mapping[str, object] | None = None, *, action: str = ""
    ) -> list[int]:
        """Run the statement on these rows and audit each changed one; returns their ids, in the order of `tasks`."""
        rows = fetch(connection, statement, {"ids": [task.id for task in tasks], **(params or {})})
        after = {row["id"]: row["version"] for row in rows}
        changed = [task for task in tasks if task.id in after]
        changes = [Change(audit.task(task.id), task.version, after[task.id]) for task in changed]
        audit.record(connection, self.who, action or self.name, changes, self.settings.reason)
        return [task.id for task in changed]

    def is_live(self, task: Task) -> bool:
        """True if a worker that is not dead holds the task."""
        return task.status == TaskStatus.PROCESSING and task.claimed_by not in self.dead

    def _perform_chunk(self, chosen: TaskFilter, ids: Sequence[int]) -> None:
        rows = chosen.criteria(Task.objects.filter(among(ids))).order_by("id")
        locked = list(rows.select_for_update(no_key=True, skip_locked=True))
        self.result.refused |= _passed_over(chosen, set(ids) - {task.id for task in locked})
        passed = []
        for task in locked:
            refusal = self._refusal_of_change(task) or self.refusal(task)
            if refusal:
                self.result.refused[task.id] = refusal
            else:
                passed.append(task)
        if passed:
            self.write(passed)
            wakeup.announce(connection)  # a task that has left may also have held back others of its ordering key

    def _refusal_of_change(self, task: Task) -> Refusal | None:
        seen = (self.versions or {}).get(task.id, task.version)
        return None if seen == task.version else CHANGED.refuse(task, seen=seen)


def _passed_over(chosen: TaskFilter, ids: set[int]) -> dict[int, Refusal]:
    """Refusals of rows that were not locked. A selection by conditions alone ignores rows that no longer match."""
    if not ids:
        return {}
    existing = set(Task.objects.filter(among(ids)).values_list("id", flat=True))
    locked = list(chosen.criteria(Task.objects.filter(among(ids))))
    holders = rowlocks.lockers(Task, [task.id for task in locked], connection)
    refused = {task.id: LOCKED.refuse(task) for task in locked}
    for task_id, lock in holders.items():
        sentence = locked_by(lock)
        refused[task_id] = replace(refused[task_id], sentence=sentence)
    if chosen.ids:
        refused |= dict.fromkeys(existing - set(refused), Refusal(UNMATCHED.code, str(UNMATCHED.sentence)))
        gone = ids - existing
        archived = ArchivedTask.objects.filter(pk__in=gone).values_list("pk", flat=True) if gone else ()
        refused |= dict.fromkeys(gone, Refusal(MISSING.code, str(MISSING.sentence)))
        refused |= dict.fromkeys(archived, Refusal(ARCHIVED.code, str(ARCHIVED.sentence)))
    return refused
