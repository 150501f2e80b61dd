"""Carry out a bulk run: chunk by chunk, each a short transaction, continuing where the run stopped."""

import json
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from django.db import connection

from tasks import actions
from tasks.actions.chunks import CHUNK
from tasks.audit import Who
from tasks.bulk.instruction import INSTRUCTIONS, Settings
from tasks.bulk.models import BulkRun
from tasks.bulk.tally import shown_ids
from tasks.database import fetch
from tasks.list_filter import BoundedFilter, ListFilter

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
        result = instruction.perform(found, who, settings, spread=spread) if found.ids else actions.Result()
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


def note(run: BulkRun, ids: list[int], result: actions.Result) -> bool:
    """Store the result of one chunk; True if a person has stopped the run."""
    add_refusals(run.refusals, result)
    counts = {"looked": len(ids), "done": len(result.done), "asked": len(result.asked), "refused": len(result.refused)}
    for name, number in counts.items():
        setattr(run, name, getattr(run, name) + number)
    params = {**counts, "id": run.pk, "cursor": ids[-1], "refusals": json.dumps(run.refusals)}
    return bool(fetch(connection, NOTE, params)[0]["is_stopped"])


def add_refusals(kept: dict[str, Any], result: actions.Result) -> None:
    """Count the refusals by their code, with a few ids and a sentence as examples."""
    numbers = Counter(str(refusal.code) for refusal in result.refused.values())
    for task_id, refusal in result.refused.items():
        entry = kept.setdefault(str(refusal.code), {"number": 0, "ids": [], "sentence": str(refusal.sentence)})
        if len(entry["ids"]) < EXAMPLES:
            entry["ids"].append(task_id)
    for code, number in numbers.items():
        kept[code]["number"] += number
