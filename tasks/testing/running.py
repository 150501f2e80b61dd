"""Run enqueued tasks in the test's own process and transaction, read what it enqueued, and say what is missing."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from datetime import datetime, timedelta
from functools import partial
from itertools import repeat
from typing import Any

from django.db import connection, transaction
from django.db.models import Max
from django.test import TestCase
from psycopg.pq import TransactionStatus

from tasks.compat import Task, TaskResult, task_enqueued
from tasks.framework import declaration, payload
from tasks.framework.arguments import encode_call
from tasks.models import Task as TaskRow
from tasks.queue import completion, strategies
from tasks.queue.claim import Claim, Claimer
from tasks.queue.reports import Reports, checkpoint, earlier_span
from tasks.worker.run import Runner, Work

WORKER_ID = "tests"
ENDLESS = 1000

BRING_FORWARD = """
UPDATE tasks_task SET run_after = statement_timestamp()
WHERE id = (SELECT id FROM tasks_task WHERE status = 'READY' AND run_after > statement_timestamp()
            ORDER BY run_after, id LIMIT 1)
"""

_is_running: ContextVar[bool] = ContextVar("is_running", default=False)
_failures: dict[str, Iterator[BaseException | type[BaseException]]] = {}


def run_due(limit: int | None = None) -> list[TaskResult]:
    """Run due tasks and those that they enqueue, in a worker's order; returns the results in the order of the ends.

    A failure is recorded as by a worker, and its retry is due later. Without `limit`, more than 1000 tasks raise
    RuntimeError. Raises UnknownTask for a function that is not registered.
    """
    return _run(_claim, limit)


def run_all(limit: int | None = None) -> list[TaskResult]:
    """Run everything as if time passed: due tasks, then scheduled ones, with retries until no attempt is left."""
    return _run(_claim_next, limit)


@contextmanager
def eager(*, on_commit: bool = False) -> Iterator[list[TaskResult]]:
    """Run what is due at each enqueue in the block, as if a worker stood by; yields the list of results, which grows.

    Tasks that a handler enqueues run after it. `on_commit`: run at the commit of the transaction that enqueues, or in a
    TestCase, where none comes, at the end of the block, after what waits for `transaction.on_commit`.
    """
    results: list[TaskResult] = []

    def run() -> None:
        if not _is_running.get():
            results.extend(run_due())

    def hear(**_: object) -> None:
        if on_commit:
            transaction.on_commit(run)
        else:
            run()

    task_enqueued.connect(hear, weak=False)
    try:
        with committed() if on_commit else nullcontext():
            yield results
    finally:
        task_enqueued.disconnect(hear)


@contextmanager
def committed() -> Iterator[None]:
    """At the end of the block, call what waits for a commit that never comes in a TestCase; an outer block does not."""
    start = len(connection.run_on_commit)
    with TestCase.captureOnCommitCallbacks(execute=True):
        yield
    del connection.run_on_commit[start:]


@contextmanager
def failing(task: Task, error: BaseException | type[BaseException], *, times: int | None = None) -> Iterator[None]:
    """Let attempts of a task that this module runs in the block fail with `error`, without a call of the handler.

    `times`: only so many attempts; None: all. A worker in another process knows nothing of it.
    """
    path, before = task.module_path, _failures.get(task.module_path)
    _failures[path] = repeat(error) if times is None else repeat(error, times)
    try:
        yield
    finally:
        if before is None:
            del _failures[path]
        else:
            _failures[path] = before


def _run(claim: Callable[[], list[Claim]], limit: int | None) -> list[TaskResult]:
    results: list[TaskResult] = []
    while (limit is None or len(results) < limit) and (claimed := claim()):
        if len(results) == ENDLESS and limit is None:
            raise RuntimeError(f"{ENDLESS} tasks ran and more are due: does one enqueue itself? Pass a limit.")
        task = declaration.get(claimed[0].task_path)
        told = Reports(WORKER_ID)
        runner = _Runner(
            WORKER_ID, told, partial(checkpoint, connection), earlier_span=partial(earlier_span, connection)
        )
        is_running = _is_running.set(True)
        try:
            ending = runner.run(claimed[0], task)
        finally:
            _is_running.reset(is_running)
        told.write(connection)
        completion.flush(connection, WORKER_ID, [ending])
        results.append(task.get_backend().get_result(str(claimed[0].id)))
    return results


def _claim() -> list[Claim]:
    return strategies.claim(connection, Claimer(WORKER_ID), 1)


def _claim_next() -> list[Claim]:
    while not (claimed := _claim()):
        with connection.cursor() as cursor:
            cursor.execute(BRING_FORWARD)
            if not cursor.rowcount:
                break
    return claimed


class _Runner(Runner):
    """Runs handlers in the test's own transaction, and closes no connection."""

    def call(self, claim: Claim, work: Work) -> str | None:
        """Keep a failed handler's writes, as in a worker, unless the transaction is broken."""
        if error := next(_failures.get(claim.task_path, iter(())), None):
            raise error
        savepoint = connection.savepoint()
        if savepoint is None:  # the test has no transaction
            return super().call(claim, work)
        try:
            return work()
        finally:
            status = connection.connection.info.transaction_status
            if connection.needs_rollback or status == TransactionStatus.INERROR:
                transaction.set_rollback(False)
                connection.savepoint_rollback(savepoint)
            connection.savepoint_commit(savepoint)

    def relaxes(self, task: declaration.PostgresTask) -> bool:
        """The session is the test's."""
        return False

    def clean_up(self) -> None:
        """The connections are in the middle of the test's transaction."""


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
