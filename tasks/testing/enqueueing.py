"""Read what a test enqueued, and say what is missing."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Max

from tasks.compat import Task
from tasks.framework import payload
from tasks.framework.arguments import encode_call
from tasks.models import Task as TaskRow
from tasks.testing.running import committed

ROUGHLY = timedelta(seconds=10)  # between the code's own look at its clock and the INSERT
SHOWN = 20
# Columns of a row that a message leaves out while they are as by default.
USUAL = {"queue_name": "default", "priority": 0, "ordering_key": None, "unique_key": None}


def enqueued(task: Task | None = None) -> list[TaskRow]:
    """Waiting tasks in the order in which they were enqueued: all of them, or those of one task function."""
    rows = TaskRow.objects.ready().order_by("id")
    return _opened(rows if task is None else rows.filter(task_path=task.module_path))


def _opened(rows: Iterable[TaskRow]) -> list[TaskRow]:
    """The rows with their arguments, decrypted where they are encrypted. Raises PayloadLocked without their key."""
    found = list(rows)
    for row in found:
        row.args, row.kwargs = payload.opened_call(row.args, row.kwargs)
    return found


@contextmanager
def captured_tasks() -> Iterator[list[TaskRow]]:
    """Give the tasks that are enqueued in the block, in their order; the list is filled at its end.

    The end first calls what waits for `transaction.on_commit`, so what that enqueues is in the list. Tasks from
    `enqueue_many`, SQL and schedules are too, in whatever state they are then; one that an enqueue found by its unique
    key is not. Each is a row: `task_path`, `args`, `kwargs`, `queue_name`, `priority`, `ordering_key`, `run_after`, ….
    """
    latest = TaskRow.objects.aggregate(id=Max("id"))["id"] or 0
    tasks: list[TaskRow] = []
    with committed():
        yield tasks
    tasks += _opened(TaskRow.objects.filter(id__gt=latest).order_by("id"))


def assert_enqueued(
    task: Task,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    queue: str | None = None,
    priority: int | None = None,
    ordering_key: str | None = None,
    unique_key: str | None = None,
    run_after: datetime | timedelta | None = None,
    count: int | None = None,
    among: Iterable[TaskRow] | None = None,
) -> list[TaskRow]:
    """Return the tasks of this function that were enqueued like this. AssertionError shows what was enqueued instead.

    None stands for any value. `run_after`: a time, or how long after its enqueueing, give or take 10 s. `count`:
    exactly so many, 0 for none; by default at least one. `among`: the list of `captured_tasks`; by default every task
    in the table, also one that has run.
    """
    as_json = json.loads(encode_call(list(args or ()), dict(kwargs or {})).json)
    given = {
        "args": None if args is None else as_json[0],
        "kwargs": None if kwargs is None else as_json[1],
        "queue_name": queue,
        "priority": priority,
        "ordering_key": ordering_key,
        "unique_key": unique_key,
        "run_after": run_after,
    }
    wanted = {name: value for name, value in given.items() if value is not None}
    rows = _opened(TaskRow.objects.order_by("id")) if among is None else list(among)
    found = [row for row in rows if row.task_path == task.module_path and not _differences(row, wanted)]
    if len(found) == count or (count is None and found):
        return found
    raise AssertionError(_message(task, wanted, count, len(found), rows))


def _differences(row: TaskRow, wanted: Mapping[str, Any]) -> list[str]:
    return [name for name, value in wanted.items() if not _is_like(row, name, value)]


def _is_like(row: TaskRow, name: str, value: object) -> bool:
    if isinstance(value, timedelta):
        return abs(row.run_after - row.created_at - value) <= ROUGHLY
    return bool(getattr(row, name) == value)


def _message(task: Task, wanted: Mapping[str, Any], count: int | None, number: int, rows: list[TaskRow]) -> str:
    values = "".join(f", {name} {value!r}" for name, value in wanted.items())
    demand = "at least 1" if count is None else count
    lines = [f"{task.module_path}{values}: {number} enqueued, {demand} expected. Enqueued:"]
    for row in rows[:SHOWN]:
        lines.append(f"  {_call(row)}")
        if row.task_path == task.module_path and (differing := _differences(row, wanted)):
            lines[-1] += f" (differs in {', '.join(differing)})"
    if len(rows) > SHOWN:
        lines.append(f"  and {len(rows) - SHOWN} more")
    return "\n".join(lines if rows else [f"{lines[0]} nothing."])


def _call(row: TaskRow) -> str:
    call = ", ".join([*(f"{arg!r}" for arg in row.args), *(f"{name}={value!r}" for name, value in row.kwargs.items())])
    columns = [f"{name} {getattr(row, name)!r}" for name, usual in USUAL.items() if getattr(row, name) != usual]
    if row.run_after > row.created_at:
        columns.append(f"run_after {row.run_after.isoformat()}")
    return ", ".join([f"{row.task_path}({call}) {row.status}", *columns])
