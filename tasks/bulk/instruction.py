"""Instructions for tasks, as values that a form fills, a row stores and a worker carries out."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, NamedTuple, Self

from tasks import actions
from tasks.actions.chunks import Selection
from tasks.actions.requeue import AT_ONCE, Spread
from tasks.audit import Who
from tasks.filters import TaskFilter
from tasks.models import Task, TaskStatus


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of an action; each action reads its own."""

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


Perform = Callable[..., actions.Result]


class Instruction(NamedTuple):
    """One action by its name: the states that it can change, and the function that carries it out.

    `perform` takes a selection, who acts, Settings, and the keywords versions, dry_run and spread.
    """

    name: str
    statuses: tuple[TaskStatus, ...]
    perform: Perform


def recover(
    selection: Selection,
    who: Who,
    settings: Settings,
    *,
    versions: Mapping[int, int] | None = None,
    dry_run: bool = False,
    spread: Spread = AT_ONCE,
) -> actions.Result:
    """Ignores `versions`: only the worker's death decides, and a heartbeat does not change the task's row."""
    ids = list(TaskFilter.of(selection).queryset().order_by("id").values_list("id", flat=True))
    sweep = actions.recover(who, task_ids=ids, reason=settings.reason, dry_run=dry_run)
    done = {row["id"] for row in sweep.rows}
    left = Task.objects.in_bulk(task_id for task_id in ids if task_id not in done)
    refused = {task_id: actions.Refusal.of_row(task, actions.Code.NOT_DEAD) for task_id, task in left.items()}
    return actions.Result(done=sorted(done), refused=refused)


def requeue(
    selection: Selection,
    who: Who,
    settings: Settings,
    *,
    versions: Mapping[int, int] | None = None,
    dry_run: bool = False,
    spread: Spread = AT_ONCE,
) -> actions.Result:
    return actions.requeue(
        selection,
        who,
        reason=settings.reason,
        force=settings.force,
        spread=spread,
        versions=versions,
        dry_run=dry_run,
    )


def edit(
    selection: Selection,
    who: Who,
    settings: Settings,
    *,
    versions: Mapping[int, int] | None = None,
    dry_run: bool = False,
    spread: Spread = AT_ONCE,
) -> actions.Result:
    return actions.edit(
        selection,
        who,
        queue_name=settings.queue_name,
        priority=settings.priority,
        run_after=settings.run_after,
        reason=settings.reason,
        versions=versions,
        dry_run=dry_run,
    )


def plainly(act: Perform) -> Perform:
    """Wrap an action that needs only the reason."""

    def perform(
        selection: Selection,
        who: Who,
        settings: Settings,
        *,
        versions: Mapping[int, int] | None = None,
        dry_run: bool = False,
        spread: Spread = AT_ONCE,
    ) -> actions.Result:
        return act(selection, who, reason=settings.reason, versions=versions, dry_run=dry_run)

    return perform


READY, PROCESSING, FAILED, CANCELLED = (
    TaskStatus.READY,
    TaskStatus.PROCESSING,
    TaskStatus.FAILED,
    TaskStatus.CANCELLED,
)
INSTRUCTIONS = {
    instruction.name: instruction
    for instruction in (
        Instruction("recover", (PROCESSING,), recover),
        Instruction("requeue", (FAILED, CANCELLED, PROCESSING), requeue),
        Instruction("edit", (READY,), edit),
        Instruction("quarantine", (READY, FAILED), plainly(actions.quarantine)),
        Instruction("put_back", (READY,), plainly(actions.put_back)),
        Instruction("cancel", (READY, PROCESSING, FAILED), plainly(actions.cancel)),
    )
}
