"""An operator's verb on tasks: its names, right and settings, and its result. Pages, bulk runs and commands call it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, ClassVar, NamedTuple, Self

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy

from tasks.diagnosis.finding import command
from tasks.models import Task, TaskStatus
from tasks.operations.filters import TaskFilter
from tasks.support.audit import Who

Selection = Iterable[int] | TaskFilter
# Called between chunks with the number of rows done, and of all rows (None: unknown); False stops the action.
Progress = Callable[[int, int | None], bool]


def go_on(done: int, total: int | None) -> bool:
    """The default progress, which never stops the action."""
    return True


class Reason(NamedTuple):
    """Why a task is left as it is: a code for scripts, and a sentence with the row's columns in braces."""

    code: str
    sentence: str | Promise


MISSING = Reason("missing", gettext_lazy("there is no such task; it was pruned, or the id is wrong"))
UNMATCHED = Reason("unmatched", gettext_lazy("it does not match the filter that was given with its id"))
LOCKED = Reason("locked", gettext_lazy("another session holds its row at this moment; try again"))
CHANGED = Reason(
    "changed",
    gettext_lazy("it changed since you looked (version {seen}): it is {status} at version {version} now; look again"),
)
HELD = Reason("held", gettext_lazy("worker {claimed_by} holds it; only a task that waits to run can be edited"))
COMPLETED = Reason("completed", gettext_lazy("it has completed; to have its effect again, enqueue it anew"))
FINISHED = Reason(
    "finished",
    gettext_lazy("it is {status} already; only a task that waits to run can be edited, so requeue it first"),
)
EXHAUSTED = Reason(
    "exhausted", gettext_lazy("attempt {attempt} leaves no room for more (at most 32767); enqueue it anew")
)


@dataclass(frozen=True)
class Refusal:
    """One task that was left as it is: the code for scripts, the sentence for people, and the task's state."""

    code: str
    sentence: str
    status: str | None = None
    version: int | None = None

    @classmethod
    def of_row(cls, task: Task, reason: Reason, **details: Any) -> "Refusal":
        """The refusal of a row that was read; `details` and the row's columns fill the sentence."""
        known = {
            "status": task.status,
            "version": task.version,
            "claimed_by": task.claimed_by,
            "attempt": task.attempt,
        }
        return cls(reason.code, str(reason.sentence).format(**known, **details), task.status, task.version)

    @classmethod
    def of_id(cls, reason: Reason) -> "Refusal":
        """The refusal of an id whose row could not be read."""
        return cls(reason.code, str(reason.sentence))


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


@dataclass(frozen=True)
class Spread:
    """Makes `of` tasks due one by one, evenly over `seconds`.

    In an action of several chunks, `first` counts the earlier tasks and `elapsed_seconds` the time since the start. So
    all chunks keep one schedule.
    """

    seconds: float
    of: int
    first: int = 0
    elapsed_seconds: float = 0.0

    def delay(self, place: int) -> float:
        """Seconds from now until the task at this place (from 0) is due.

        >>> [Spread(60, of=3).delay(place) for place in range(3)]
        [0.0, 20.0, 40.0]
        """
        return max(0.0, self.seconds * (self.first + place) / max(1, self.of) - self.elapsed_seconds)


AT_ONCE = Spread(0, of=1)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a verb, which a form fills and a bulk run stores; each verb reads its own."""

    reason: str = ""
    force: bool = False
    queue_name: str | None = None
    priority: int | None = None
    run_after: datetime | None = None
    spread_minutes: int | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read the output of `as_json`."""
        at = values.get("run_after")
        return cls(**{**values, "run_after": datetime.fromisoformat(at) if at else None})

    def as_json(self) -> dict[str, Any]:
        """The values for a column; times as ISO 8601."""
        return {**asdict(self), "run_after": self.run_after.isoformat() if self.run_after else None}

    def spread(self, of: int, first: int = 0, elapsed_seconds: float = 0.0) -> Spread:
        """The spread of requeued tasks over the requested minutes."""
        if not self.spread_minutes:
            return AT_ONCE
        return Spread(60.0 * self.spread_minutes, of, first, elapsed_seconds)


NO_SETTINGS = Settings()


class Verb(ABC):
    """One verb. A subclass names it and performs it; one instance serves one call.

    `statuses` are the states that it can change, `right` is what a person needs for it, and `words` begin its command.
    """

    name: ClassVar[str]
    label: ClassVar[str | Promise]
    right: ClassVar[str]
    statuses: ClassVar[tuple[TaskStatus, ...]]
    words: ClassVar[tuple[str, ...]]

    def __init__(self, who: Who, settings: Settings = NO_SETTINGS, spread: Spread = AT_ONCE) -> None:
        self.who = who
        self.settings = settings
        self.spread = spread

    @classmethod
    def act(
        cls,
        selection: Selection,
        who: Who,
        settings: Settings = NO_SETTINGS,
        *,
        versions: Mapping[int, int] | None = None,
        spread: Spread = AT_ONCE,
        dry_run: bool = False,
        progress: Progress = go_on,
    ) -> Result:
        """Perform the verb on every selected task that allows it.

        `versions`: the version of each task that the operator saw; a row that changed since is refused. A dry run
        selects and locks the same rows, writes the same changes, and rolls back.
        """
        verb = cls(who, settings, spread)
        return verb.perform(TaskFilter.of(selection), versions=versions, dry_run=dry_run, progress=progress)

    @abstractmethod
    def perform(
        self, chosen: TaskFilter, *, versions: Mapping[int, int] | None, dry_run: bool, progress: Progress
    ) -> Result:
        """Do the work of `act`."""

    @classmethod
    def command(cls, chosen: TaskFilter, settings: Settings) -> str:
        """The command line that does the same to these tasks."""
        pairs = [*cls.options(settings), ("--reason", settings.reason or None)]
        own = [word for name, value in pairs if value is not None for word in (name, str(value))]
        return command(*cls.words, *cls.subject(chosen), *own)

    @classmethod
    def subject(cls, chosen: TaskFilter) -> list[str]:
        """The words of the command that select the tasks."""
        return chosen.as_words()

    @classmethod
    def options(cls, settings: Settings) -> list[tuple[str, object]]:
        """The verb's own options of the command; None leaves one away."""
        return []
