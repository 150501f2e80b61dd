"""Bulk runs: one verb on every task that matches a filter, counted for a preview and carried out by a worker."""

import json
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from django.db import connection, connections
from django.db.models import Count, Max

from tasks import operations
from tasks.framework.declaration import handler
from tasks.models import BulkRun, Task, TaskStatus
from tasks.operations import tokens
from tasks.operations.filters import TaskFilter
from tasks.operations.search import until
from tasks.operations.verb import CHUNK, Result, Settings, Share, short_waits
from tasks.support import audit
from tasks.support.audit import Change, Who
from tasks.support.database import fetch
from tasks.support.redaction import redact

FIRST_WINDOW = 50_000  # ids
WINDOW_GROWTH = 4
SECONDS = 1.5
MOST_READ = 10_000  # rows whose arguments are read, for a text filter
RUN_BULK_ACTION = "tasks.tasks.run_bulk_action"
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
STOP = """
UPDATE tasks_bulkrun SET stop_requested_at = clock_timestamp()
WHERE id = %(id)s::bigint AND finished_at IS NULL AND stop_requested_at IS NULL RETURNING task_id
"""


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


def tally(chosen: TaskFilter, upto: int, *, seconds: float = SECONDS) -> Tally:
    """Count the tasks that match, from the id `upto` downwards, for at most `seconds`."""
    deadline = time.monotonic() + seconds
    # Indexes contain every row that can match: one read of them replaces the windows of ids.
    is_indexed = bool(chosen.statuses) and TaskStatus.COMPLETED not in chosen.statuses and not chosen.text
    if is_indexed and (by_status := _count_each(chosen, upto, deadline - seconds / 2)) is not None:
        return Tally(by_status)
    found, window = Tally(counted_down_to=upto), FIRST_WINDOW
    while found.counted_down_to > 0:
        below = max(0, found.counted_down_to - window)
        counted = _count(chosen.within(found.counted_down_to, below), deadline)
        if counted is None:
            found.is_complete = False
            break
        found.by_status += counted
        found.counted_down_to = below
        window *= WINDOW_GROWTH
    return found


def _count_each(chosen: TaskFilter, upto: int, deadline: float) -> Counter[str] | None:
    """All matches, each status from its own index; None when the time is over."""
    found: Counter[str] = Counter()
    for status in chosen.statuses:
        counted = _count(chosen.with_statuses(status).within(upto), deadline)
        if counted is None:
            return None
        found += counted
    return found


def _count(chosen: TaskFilter, deadline: float) -> Counter[str] | None:
    """Matches by status; None when the time is over or too many rows would have to be read."""
    if not chosen.text:
        counts = chosen.queryset().order_by().values("status").annotate(number=Count("pk"))
        rows = until(deadline, lambda: list(counts))
        return None if rows is None else Counter({row["status"]: row["number"] for row in rows})
    # Row by row, because a count of matches in redacted arguments would reveal them.
    tasks = until(deadline, lambda: list(chosen.queryset()[: MOST_READ + 1]))
    if tasks is None or len(tasks) > MOST_READ:
        return None
    return Counter(task.status for task in tasks if chosen.shows(task))


def request(action: str, chosen: TaskFilter, upto: int, settings: Settings, who: Who, token: str) -> int:
    """Enqueue a bulk run, once for each token; returns its id. Run, task and intervention share one transaction."""

    def create() -> str:
        options = {**replace(settings, reason=redact(settings.reason)).as_json(), "source": who.source}
        run = BulkRun.objects.create(
            action=action, options=options, filter=chosen.as_query(), upto=upto, actor=who.actor
        )
        result = handler(RUN_BULK_ACTION).enqueue(run.pk)
        BulkRun.objects.filter(pk=run.pk).update(task_id=int(result.id))
        subject = f"{action} all {run.filter or 'tasks'} up to #{upto} (bulk run {run.pk})"
        audit.record(connection, who, subject, [Change(audit.table("tasks_task"))], settings.reason)
        return str(run.pk)

    return int(tokens.once(token, create).target)


def stop(run: BulkRun, who: Who, *, reason: str = "", dry_run: bool = False) -> bool:
    """End the run after the current chunk; changes stay. False if it is over or already stopped."""
    with short_waits(rollback=dry_run):
        stopped = fetch(connection, STOP, {"id": run.pk})
        if stopped:
            audit.record(connection, who, f"stop bulk run {run.pk}", [Change(audit.table("tasks_task"))], reason)
    if not stopped or dry_run:
        return bool(stopped)
    task = Task.objects.filter(pk=stopped[0]["task_id"]).first()
    if task is None or task.status != TaskStatus.PROCESSING:
        operations.cancel([task.pk] if task else [], who, Settings(reason=reason))
        fetch(connection, FINISH, {"id": run.pk})
    return True


def in_own_session(work: Callable[[int], Numbers], run_id: int) -> Numbers:
    """Do the work on its own session if a transaction is open.

    The pessimistic strategy keeps one open while the task runs, so the rows would stay locked until its end.
    """
    if not connection.in_atomic_block:
        return work(run_id)

    with ThreadPoolExecutor(1) as pool:
        try:
            return pool.submit(work, run_id).result()
        finally:
            pool.submit(connections.close_all)  # that thread's


def carry_out(run_id: int) -> Numbers:
    """Do the rest of the run; returns its numbers.

    If a worker dies in the middle of a chunk, that chunk may be missing in the numbers; nothing is done twice.
    """
    run = BulkRun.objects.get(pk=run_id)
    verb, settings = operations.VERBS[run.action], Settings.from_json(run.options)
    who = Who(run.actor, run.options.get("source", "page"))
    requested = TaskFilter.from_query(run.filter).within(run.upto, run.cursor)
    chosen = subject(run.action, requested)
    ids = chosen.selected_ids() if chosen.statuses else []  # a filter without statuses would reach every task
    elapsed = fetch(connection, BEGIN, {"id": run.pk, "left": len(ids)})[0]["elapsed_seconds"]
    since, total = time.monotonic() - elapsed, run.looked + len(ids)
    for start in range(0, len(ids), CHUNK):
        slice_ids = list(ids[start : start + CHUNK])
        found = replace(chosen, ids=tuple(slice_ids))
        if chosen.text:  # only tasks that a person can have seen with this filter
            found = replace(found, ids=tuple(task.pk for task in found.queryset().order_by("id") if chosen.shows(task)))
        share = Share(total, run.done, time.monotonic() - since)
        result = verb.act(found, who, settings, share=share) if found.ids else Result()
        if note(run, slice_ids, result):
            break
    fetch(connection, FINISH, {"id": run.pk})
    return {"looked": run.looked, "done": run.done, "asked": run.asked, "refused": run.refused}


def subject(action: str, chosen: TaskFilter) -> TaskFilter:
    """The matching tasks in a state that the action can change; no statuses means that no task is."""
    wanted = operations.VERBS[action].statuses
    return chosen.with_statuses(*(str(status) for status in wanted if status in (chosen.statuses or wanted)))


def note(run: BulkRun, ids: list[int], result: Result) -> bool:
    """Store the result of one chunk; True if a person has stopped the run."""
    add_refusals(run.refusals, result)
    counts = {"looked": len(ids), "done": len(result.done), "asked": len(result.asked), "refused": len(result.refused)}
    for name, number in counts.items():
        setattr(run, name, getattr(run, name) + number)
    params = {**counts, "id": run.pk, "cursor": ids[-1], "refusals": json.dumps(run.refusals)}
    return bool(fetch(connection, NOTE, params)[0]["is_stopped"])


def add_refusals(kept: dict[str, Any], result: Result) -> None:
    """Count the refusals by their code, with a few ids and a sentence as examples."""
    for task_id, refusal in result.refused.items():
        entry = kept.setdefault(refusal.code, {"number": 0, "ids": [], "sentence": refusal.sentence})
        entry["number"] += 1
        if len(entry["ids"]) < EXAMPLES:
            entry["ids"].append(task_id)
