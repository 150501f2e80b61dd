"""Instructions for tasks, as values that a form fills, a row stores and a worker carries out."""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple, Self

from django.db import OperationalError, connection
from django.db.models import Count, Max
from django.db.transaction import atomic

from tasks import operations
from tasks.models import BulkRun
from tasks.models import Task
from tasks.models import TaskStatus
from tasks.operations.chunks import CHUNK, Selection
from tasks.operations.filters import BoundedFilter, ListFilter, TaskFilter
from tasks.operations.requeue import AT_ONCE, Spread
from tasks.support.audit import Who
from tasks.support.database import fetch


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


Perform = Callable[..., operations.Result]


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
) -> operations.Result:
    """Ignores `versions`: only the worker's death decides, and a heartbeat does not change the task's row."""
    ids = list(TaskFilter.of(selection).queryset().order_by("id").values_list("id", flat=True))
    sweep = operations.recover(who, task_ids=ids, reason=settings.reason, dry_run=dry_run)
    done = {row["id"] for row in sweep.rows}
    left = Task.objects.in_bulk(task_id for task_id in ids if task_id not in done)
    refused = {task_id: operations.Refusal.of_row(task, operations.Code.NOT_DEAD) for task_id, task in left.items()}
    return operations.Result(done=sorted(done), refused=refused)


def requeue(
    selection: Selection,
    who: Who,
    settings: Settings,
    *,
    versions: Mapping[int, int] | None = None,
    dry_run: bool = False,
    spread: Spread = AT_ONCE,
) -> operations.Result:
    return operations.requeue(
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
) -> operations.Result:
    return operations.edit(
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
    ) -> operations.Result:
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
        Instruction("quarantine", (READY, FAILED), plainly(operations.quarantine)),
        Instruction("put_back", (READY,), plainly(operations.put_back)),
        Instruction("cancel", (READY, PROCESSING, FAILED), plainly(operations.cancel)),
    )
}


FIRST_WINDOW = 50_000  # ids
WINDOW_GROWTH = 4
SECONDS = 1.5
MOST_READ = 10_000  # rows whose arguments are read, for a text filter
QUERY_CANCELED = "57014"
LIMIT_STATEMENT = "SELECT set_config('statement_timeout', %(milliseconds)s::text, true)"


@dataclass
class Tally:
    """Matching tasks by status. Not `is_complete`: there may be more, below the id `counted_down_to`."""

    by_status: Counter[str] = field(default_factory=Counter)
    is_complete: bool = True
    counted_down_to: int = 0

    @property
    def statuses(self) -> list[tuple[str, int]]:
        """Each status with its number, largest first."""
        return self.by_status.most_common()

    @property
    def number(self) -> int:
        return self.by_status.total()


def highest_id() -> int:
    """The id of the newest task, 0 without one."""
    return Task.objects.aggregate(highest=Max("pk"))["highest"] or 0


def tally(chosen: ListFilter, upto: int, *, seconds: float = SECONDS) -> Tally:
    """Count the tasks that match, from the id `upto` downwards, for at most `seconds`."""
    deadline = time.monotonic() + seconds
    if is_indexed(chosen):
        by_status = _count_each(chosen, upto, deadline - seconds / 2)
        if by_status is not None:
            return Tally(by_status)
    found = Tally(counted_down_to=upto)
    window = FIRST_WINDOW
    while found.counted_down_to > 0:
        below = max(0, found.counted_down_to - window)
        counted = _count(BoundedFilter.within(chosen, found.counted_down_to, below), deadline)
        if counted is None:
            found.is_complete = False
            break
        found.by_status += counted
        found.counted_down_to = below
        window *= WINDOW_GROWTH
    return found


def is_indexed(chosen: ListFilter) -> bool:
    """True if indexes contain every row that can match: one read of them replaces the windows of ids."""
    return bool(chosen.statuses) and TaskStatus.COMPLETED not in chosen.statuses and not chosen.text


def _count_each(chosen: ListFilter, upto: int, deadline: float) -> Counter[str] | None:
    """All matches, each status from its own index; None when the time is over."""
    found: Counter[str] = Counter()
    for status in chosen.statuses:
        counted = _count(BoundedFilter.within(chosen.with_statuses(status), upto), deadline)
        if counted is None:
            return None
        found += counted
    return found


def _count(chosen: BoundedFilter, deadline: float) -> Counter[str] | None:
    """Matches by status; None when the time is over or too many rows would have to be read."""
    milliseconds = int(1000 * (deadline - time.monotonic()))
    if milliseconds <= 0:
        return None
    try:
        with atomic(), connection.cursor() as cursor:
            cursor.execute(LIMIT_STATEMENT, {"milliseconds": str(milliseconds)})
            return _read(chosen) if chosen.text else _counted(chosen)
    except OperationalError as error:
        if getattr(error.__cause__, "sqlstate", None) != QUERY_CANCELED:
            raise
        return None


def _counted(chosen: BoundedFilter) -> Counter[str]:
    rows = chosen.queryset().order_by().values("status").annotate(number=Count("pk"))
    return Counter({row["status"]: row["number"] for row in rows})


def _read(chosen: BoundedFilter) -> Counter[str] | None:
    """Count row by row, because a count of matches in redacted arguments would reveal them."""
    tasks = list(chosen.queryset()[: MOST_READ + 1])
    if len(tasks) > MOST_READ:
        return None
    return Counter(task.status for task in tasks if chosen.shows(task))


def shown_ids(chosen: ListFilter, ids: list[int]) -> list[int]:
    """The ids that a person can have seen with this filter."""
    if not chosen.text:
        return ids
    tasks = replace(chosen, ids=tuple(ids)).queryset().order_by("id")
    return [task.pk for task in tasks if chosen.shows(task)]


EXAMPLES = 5  # refused ids kept for each code
Numbers = dict[str, int]

BEGIN = """
UPDATE tasks_bulkrun
SET started_at = coalesce(started_at, clock_timestamp()), total = looked + %(left)s::int
WHERE id = %(id)s::bigint
RETURNING extract(epoch FROM clock_timestamp() - started_at)::float8 AS elapsed_seconds
"""
NOTE = """
UPDATE tasks_bulkrun
SET cursor = greatest(cursor, %(cursor)s::bigint), looked = looked + %(looked)s::int, done = done + %(done)s::int,
    asked = asked + %(asked)s::int, refused = refused + %(refused)s::int, refusals = %(refusals)s::jsonb
WHERE id = %(id)s::bigint RETURNING stop_requested_at IS NOT NULL AS is_stopped
"""
FINISH = """
UPDATE tasks_bulkrun SET finished_at = coalesce(finished_at, clock_timestamp()) WHERE id = %(id)s::bigint RETURNING id
"""


def in_own_session(work: Callable[[int], Numbers], run_id: int) -> Numbers:
    """Do the work on its own session if a transaction is open.

    The pessimistic strategy keeps one open while the task runs, so the rows would stay locked until its end.
    """
    if not connection.in_atomic_block:
        return work(run_id)

    def apart() -> Numbers:
        try:
            return work(run_id)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(apart).result()


def carry_out(run_id: int) -> Numbers:
    """Do the rest of the run; returns its numbers.

    If a worker dies in the middle of a chunk, that chunk may be missing in the numbers; nothing is done twice.
    """
    run = BulkRun.objects.get(pk=run_id)
    instruction, settings = INSTRUCTIONS[run.action], Settings.from_json(run.options)
    chosen = subject(run.action, ListFilter.from_query(run.filter), run.upto, run.cursor)
    ids = chosen.selected_ids() if chosen.statuses else []
    elapsed = fetch(connection, BEGIN, {"id": run.pk, "left": len(ids)})[0]["elapsed_seconds"]
    since, total = time.monotonic() - elapsed, run.looked + len(ids)
    for start in range(0, len(ids), CHUNK):
        slice_ids = list(ids[start : start + CHUNK])
        spread = settings.spread(total, run.done, time.monotonic() - since)
        found = replace(chosen, ids=tuple(shown_ids(chosen, slice_ids)))
        who = Who(run.actor, "page")
        result = instruction.perform(found, who, settings, spread=spread) if found.ids else operations.Result()
        if note(run, slice_ids, result):
            break
    fetch(connection, FINISH, {"id": run.pk})
    return {"looked": run.looked, "done": run.done, "asked": run.asked, "refused": run.refused}


def subject(action: str, chosen: ListFilter, upto: int, above: int = 0) -> BoundedFilter:
    """The matching tasks in a state that the action can change.

    Without such a state the filter has no statuses, which means no tasks here.
    """
    wanted = INSTRUCTIONS[action].statuses
    statuses = [status for status in wanted if not chosen.statuses or status in chosen.statuses]
    return BoundedFilter.within(chosen.with_statuses(*map(str, statuses)), upto, above)


def note(run: BulkRun, ids: list[int], result: operations.Result) -> bool:
    """Store the result of one chunk; True if a person has stopped the run."""
    add_refusals(run.refusals, result)
    counts = {"looked": len(ids), "done": len(result.done), "asked": len(result.asked), "refused": len(result.refused)}
    for name, number in counts.items():
        setattr(run, name, getattr(run, name) + number)
    params = {**counts, "id": run.pk, "cursor": ids[-1], "refusals": json.dumps(run.refusals)}
    return bool(fetch(connection, NOTE, params)[0]["is_stopped"])


def add_refusals(kept: dict[str, Any], result: operations.Result) -> None:
    """Count the refusals by their code, with a few ids and a sentence as examples."""
    numbers = Counter(str(refusal.code) for refusal in result.refused.values())
    for task_id, refusal in result.refused.items():
        entry = kept.setdefault(str(refusal.code), {"number": 0, "ids": [], "sentence": str(refusal.sentence)})
        if len(entry["ids"]) < EXAMPLES:
            entry["ids"].append(task_id)
    for code, number in numbers.items():
        kept[code]["number"] += number
