"""Run enqueued tasks in the test's own process and transaction: what is due, everything, or each at once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from itertools import repeat

from django.db import connection, transaction
from django.test import TestCase
from psycopg.pq import TransactionStatus

from tasks.compat import Task, TaskResult, task_enqueued
from tasks.framework import declaration
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
