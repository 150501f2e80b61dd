"""Convert a task's row into the framework's TaskResult."""

from dataclasses import dataclass, fields
from datetime import datetime
from inspect import isclass
from pkgutil import resolve_name
from typing import Any

from tasks.compat import Task, TaskError, TaskResult, TaskResultStatus
from tasks.exceptions import Abandoned, TimedOut
from tasks.framework import declaration, payload
from tasks.framework.arguments import Inserted
from tasks.models import Attempt, TaskStatus
from tasks.models import Task as TaskRow

STATUSES = {
    TaskStatus.READY: TaskResultStatus.READY,
    TaskStatus.PROCESSING: TaskResultStatus.RUNNING,
    TaskStatus.COMPLETED: TaskResultStatus.SUCCESSFUL,
    TaskStatus.FAILED: TaskResultStatus.FAILED,
    TaskStatus.CANCELLED: TaskResultStatus.FAILED,
}
RAISED_BY_NO_HANDLER = {Attempt.Outcome.ABANDONED: Abandoned, Attempt.Outcome.TIMED_OUT: TimedOut}


class AttemptError(TaskError):
    """The error of one attempt; its class may be nested in another, like `Order.DoesNotExist`."""

    __slots__ = ()

    @property
    def exception_class(self) -> type[BaseException]:
        """The exception class. Raises ImportError if it is gone, ValueError if the name is no exception now."""
        try:
            found = resolve_name(self.exception_class_path)
        except (ImportError, AttributeError, ValueError) as error:
            raise ImportError(f"{self.exception_class_path!r} names nothing that can be imported here.") from error
        if not isclass(found) or not issubclass(found, BaseException):
            raise ValueError(f"{self.exception_class_path!r} does not reference a valid exception.")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningResult(TaskResult):  # type: ignore[misc]  # frozen in truth, but not in the stubs
    """A handler's view of its own task. Earlier attempts are counted but not read from the database."""

    attempt: int = 1

    @property
    def attempts(self) -> int:
        return self.attempt


def enqueued_result(task: Task, row: Inserted, *, backend: str) -> TaskResult:
    """The result of a task that has just been enqueued."""
    return TaskResult(
        task=task,
        id=str(row.id),
        status=TaskResultStatus.READY,
        enqueued_at=row.created_at,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=row.call.args,
        kwargs=row.call.kwargs,
        backend=backend,
        errors=[],
        worker_ids=[],
    )


def running_result(
    task: Task,
    *,
    id: int,
    args: list[Any],
    kwargs: dict[str, Any],
    attempt: int,
    worker_id: str,
    enqueued_at: datetime,
    started_at: datetime,
) -> TaskResult:
    """The result of a task that starts now in this process, for signals and context; no query.

    `attempt` counts from 1. `args` and `kwargs` are decoded.
    """
    return RunningResult(
        task=task,
        id=str(id),
        status=TaskResultStatus.RUNNING,
        enqueued_at=enqueued_at,
        started_at=started_at,
        finished_at=None,
        last_attempted_at=started_at,
        args=args,
        kwargs=kwargs,
        backend=task.backend,
        errors=[],
        worker_ids=[worker_id],
        attempt=attempt,
    )


def result_of(row: TaskRow, *, backend: str = "default") -> TaskResult:
    """The result of a stored task; a second query only if it has unsuccessful attempts.

    Raises UnknownTask if its function is not registered in this process, and PayloadLocked without the key.
    """
    task = declaration.get(row.task_path)
    args, kwargs = payload.opened_call(row.args, row.kwargs)
    # The worker that runs it or completed it; every other attempt has its own row.
    holder = row.finished_by if row.status == TaskStatus.COMPLETED else row.claimed_by
    attempts: list[Attempt] = []
    if row.attempt != (0 if holder is None else 1):
        attempts = list(row.attempts.exclude(outcome=Attempt.Outcome.RELEASED).order_by("number", "id"))
    starts = [start for start in (*(attempt.started_at for attempt in attempts), row.started_at) if start]
    result: TaskResult = TaskResult(
        task=_as_stored(task, row, backend),
        id=str(row.pk),
        status=STATUSES[TaskStatus(row.status)],
        enqueued_at=row.created_at,
        started_at=min(starts, default=None),
        finished_at=row.finished_at,
        last_attempted_at=max(starts, default=None),
        args=args,
        kwargs=kwargs,
        backend=backend,
        errors=[_error(attempt) for attempt in attempts],
        worker_ids=[attempt.worker_id for attempt in attempts] + ([] if holder is None else [holder]),
    )
    object.__setattr__(result, "_return_value", payload.opened(row.return_value))
    return result


def _error(attempt: Attempt) -> AttemptError:
    raised_by_us = RAISED_BY_NO_HANDLER.get(Attempt.Outcome(attempt.outcome))
    path = attempt.exception_class or (f"{raised_by_us.__module__}.{raised_by_us.__qualname__}" if raised_by_us else "")
    return AttemptError(exception_class_path=path, traceback=attempt.traceback)


def _as_stored(task: Task, row: TaskRow, backend: str) -> Task:
    """The task with the row's values, without validation: operators may have moved it to any queue."""
    stored = {
        "queue_name": row.queue_name,
        "priority": row.priority,
        "run_after": None if row.run_after == row.created_at else row.run_after,
        "backend": backend,
    }
    if all(getattr(task, name) == value for name, value in stored.items()):
        return task
    copy = object.__new__(type(task))
    for field in fields(task):
        object.__setattr__(copy, field.name, stored.get(field.name, getattr(task, field.name)))
    return copy
