"""Running one claimed task: the handler, the framework's signals, and what came of it."""

import logging
import time
from collections.abc import Callable
from typing import Any

from django.utils import timezone

from tasks import arguments, backoff, redaction, results
from tasks.claimer import Claim
from tasks.compat import BaseTaskBackend, TaskContext, TaskResult, TaskResultStatus, task_finished, task_started
from tasks.declaration import PostgresTask
from tasks.transitions import Ending, Failure
from tasks.worker import connections

logger = logging.getLogger(__name__)


Work = Callable[[], str | None]


def run(
    claim: Claim,
    task: PostgresTask,
    worker_id: str,
    call: Callable[[Work], str | None],
    *,
    owns_connections: bool = True,
    is_heard: bool = True,
) -> Ending:
    """Run the handler of one claim to its end; an exception of the handler is its outcome, never the caller's.

    `call` calls the work that it is given, which runs the handler and gives its return value as JSON text: `plainly`,
    or in a transaction that holds the task's row. Without `owns_connections` none is closed after a failure: they are
    in the middle of the caller's own transaction (`tasks.testing`). Without `is_heard` only a failure is told to the
    framework's signals (see `tasks.signals`).
    """
    started = time.monotonic()
    try:
        args, kwargs = claim.arguments()
    except (ValueError, RecursionError) as error:  # written by a program that asked nobody what Python can read
        unreadable = describe(error, claim, task, [], {})
        return Ending(claim.id, claim.version, claim.attempt, started, time.monotonic(), failure=unreadable)
    run = _Run(claim, task, worker_id, args, kwargs)
    return_value, failure = None, None
    try:
        if is_heard:
            task_started.send(run.sender, task_result=run.result)
        return_value = call(run.work)
    except BaseException as error:  # noqa: BLE001  SystemExit and KeyboardInterrupt of a handler are its failure too
        failure = describe(error, claim, task, args, kwargs)
        # Inside the except block: the framework's logger reads the exception from sys.exc_info(), secrets and all.
        with redaction.told_in_logs(failure.traceback):
            run.finish(TaskResultStatus.FAILED)
        if owns_connections:
            connections.close_broken()
    else:
        if is_heard:
            run.finish(TaskResultStatus.SUCCESSFUL)
    return Ending(claim.id, claim.version, claim.attempt, started, time.monotonic(), return_value, failure)


class _Run:
    """The handler's call, and the framework's result of it, which is made when somebody looks at it."""

    __slots__ = ("_result", "args", "claim", "kwargs", "task", "worker_id")

    def __init__(
        self, claim: Claim, task: PostgresTask, worker_id: str, args: list[Any], kwargs: dict[str, Any]
    ) -> None:
        self.claim = claim
        self.task = task
        self.worker_id = worker_id
        self.args = args
        self.kwargs = kwargs
        self._result: TaskResult | None = None

    @property
    def result(self) -> TaskResult:
        if self._result is None:
            self._result = results.running_result(
                self.task,
                id=self.claim.id,
                args=self.args,
                kwargs=self.kwargs,
                attempt=self.claim.attempt,
                worker_id=self.worker_id,
                enqueued_at=self.claim.enqueued_at(),
                started_at=timezone.now(),
            )
        return self._result

    @property
    def sender(self) -> type[BaseTaskBackend]:
        return type(self.task.get_backend())

    def work(self) -> str | None:
        """Call the handler; its return value as JSON text."""
        context: tuple[TaskContext, ...] = (TaskContext(task_result=self.result),) if self.task.takes_context else ()
        value = self.task.call(*context, *self.args, **self.kwargs)
        if self._result is not None:
            object.__setattr__(self._result, "_return_value", value)
        return None if value is None else arguments.encode_return_value(value)

    def finish(self, status: TaskResultStatus) -> None:
        """Say how it ended. A receiver that fails is logged and changes nothing."""
        object.__setattr__(self.result, "status", status)
        object.__setattr__(self.result, "finished_at", timezone.now())
        task_finished.send_robust(self.sender, task_result=self.result)


def plainly(work: Work) -> str | None:
    """Run the handler in no transaction but its own."""
    return_value = work()
    connections.leave_no_transaction_open()
    return return_value


def describe(
    error: BaseException, claim: Claim, task: PostgresTask, args: list[Any], kwargs: dict[str, Any]
) -> Failure:
    """What is kept of a failed attempt, and when the next one is due."""
    exception_class, traceback = redaction.describe_exception(error, task, args, kwargs)
    return Failure(exception_class, traceback, retry_seconds(task, claim.attempt))


def retry_seconds(task: PostgresTask, attempt: int) -> float:
    """The task's own backoff, or exponential with jitter; a backoff that itself fails does not lose the failure."""
    if task.backoff is None:
        return backoff.exponential(attempt)
    try:
        return max(0.0, float(task.backoff(attempt)))
    except Exception:
        logger.exception("the backoff of %s failed for attempt %s; using the default", task.module_path, attempt)
        return backoff.exponential(attempt)
