"""Running the handler of a claimed task, and keeping Django's connections usable between two tasks."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from sysconfig import get_path
from traceback import walk_tb
from typing import Any

from django.db import close_old_connections, connection, connections, reset_queries, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.utils import timezone

import tasks
from tasks.compat import (
    FRAMEWORK,
    BaseTaskBackend,
    TaskContext,
    TaskResult,
    TaskResultStatus,
    log_task_finished,
    log_task_started,
    task_finished,
    task_started,
)
from tasks.exceptions import LostClaim
from tasks.framework import arguments, backoff, results
from tasks.framework.declaration import PostgresTask
from tasks.queue import completion
from tasks.queue.claim import Claim
from tasks.queue.completion import Ending, Failure
from tasks.support import redaction
from tasks.support.reading import one_line

logger = logging.getLogger(__name__)

Work = Callable[[], str | None]
# The framework's own receivers, which log each successful run at INFO.
LOGS = {id(log_task_started), id(log_task_finished)}
HOLD_ROW = """
SELECT 1 FROM tasks_task
WHERE id = %(id)s::bigint AND claimed_by = %(worker_id)s::text AND attempt = %(attempt)s::int
FOR NO KEY UPDATE
"""

LIBRARIES = tuple(f"{path}/" for path in (get_path("stdlib"), get_path("platstdlib"), tasks.__path__[0]))
INSTALLED = {"site-packages", "dist-packages"}
LONGEST_PLACE = 200

_opened: list[BaseDatabaseWrapper] | None = None


def watch() -> None:
    """Note the connections that the main thread opens: asking Django for them took two microseconds a task."""
    global _opened
    _opened = list(connections.all(initialized_only=True))
    connection_created.connect(_note, dispatch_uid="rowlock:worker")


def _note(connection: BaseDatabaseWrapper, **_: object) -> None:
    if _opened is not None and connection not in _opened and threading.current_thread() is threading.main_thread():
        _opened.append(connection)


def opened() -> Sequence[BaseDatabaseWrapper]:
    """This thread's connections; those that were never used may be missing."""
    return connections.all(initialized_only=True) if _opened is None else tuple(_opened)


def leave_no_transaction_open() -> None:
    """Raise RuntimeError after a handler that returned inside a transaction: its work is not saved."""
    for used in opened():
        if is_closed(used):
            forget(used)
        elif is_in_transaction(used):
            forget(used)
            raise RuntimeError(
                f"The handler returned with a transaction open on database {used.alias!r}, so its writes are "
                "lost. Commit it, or use transaction.atomic()."
            )


def is_closed(connection: BaseDatabaseWrapper) -> bool:
    return bool(getattr(connection.connection, "closed", False))


def is_in_transaction(connection: BaseDatabaseWrapper) -> bool:
    return connection.connection is not None and not connection.get_autocommit()


def forget(connection: BaseDatabaseWrapper) -> None:
    """Close the session, and with it forget its wrapper: closed inside an atomic block it would never open again."""
    connection.close()
    if connections[connection.alias] is connection:
        del connections[connection.alias]
    if _opened is not None and connection in _opened:
        _opened.remove(connection)


def are_heard() -> bool:
    """True if a successful run's signals have a receiver: another than the framework's log, or that log at INFO.

    Without this check, sending the signals took a third of a worker's time when its tasks were very short.
    """
    keys = [key for signal in (task_started, task_finished) for key, *_ in signal.receivers]
    return any(receiver not in LOGS for receiver, _ in keys) or logging.getLogger(FRAMEWORK).isEnabledFor(logging.INFO)


class Runner:
    """Runs handlers one after the other. With `holds_row` each runs in a transaction that holds its task's row."""

    def __init__(self, worker_id: str, *, holds_row: bool = False) -> None:
        self.worker_id = worker_id
        self.holds_row = holds_row
        self.is_heard = True

    def begin_batch(self) -> None:
        """Do what a request does for a view: close connections that are too old or broken, and empty query logs."""
        self.is_heard = are_heard()
        if any(connection.connection is not None for connection in opened()):
            close_old_connections()
            reset_queries()

    def run(self, claim: Claim, task: PostgresTask) -> Ending:
        """Run the handler of one claim to its end; an exception of the handler is its outcome, never the caller's."""
        started = time.monotonic()
        try:
            args, kwargs = claim.arguments()
        except (ValueError, RecursionError) as error:  # a program that is not Python may have written them
            unreadable = describe(error, claim, task, [], {})
            return Ending(claim.id, claim.version, claim.attempt, started, time.monotonic(), failure=unreadable)
        run = _Run(claim, task, self.worker_id, args, kwargs)
        return_value, failure = None, None
        try:
            if self.is_heard:
                task_started.send(run.sender, task_result=run.result)
            return_value = self.call(claim, run.work)
        except BaseException as error:  # noqa: BLE001  SystemExit and KeyboardInterrupt of a handler are its failure too
            failure = describe(error, claim, task, args, kwargs)
            # Inside the except block: the framework's logger reads the exception from sys.exc_info(), secrets and all.
            with redaction.logged_as(failure.traceback):
                run.finish(TaskResultStatus.FAILED)
            self.clean_up()
        else:
            if self.is_heard:
                run.finish(TaskResultStatus.SUCCESSFUL)
        return Ending(claim.id, claim.version, claim.attempt, started, time.monotonic(), return_value, failure)

    def call(self, claim: Claim, work: Work) -> str | None:
        """Call the handler through `work`. Returns its return value as JSON text."""
        if self.holds_row:
            return self._call_holding_row(claim, work)
        return_value = work()
        leave_no_transaction_open()
        return return_value

    def _call_holding_row(self, claim: Claim, work: Work) -> str | None:
        """Call `work` while the row is held, on Django's own connection, so that the handler's writes share its fate.

        Raises what `work` raises, or LostClaim; nothing is written then.
        """
        params: dict[str, int | str] = {"id": claim.id, "worker_id": self.worker_id, "attempt": claim.attempt}
        started = time.monotonic()
        with transaction.atomic(durable=True):
            with connection.cursor() as cursor:
                cursor.execute(HOLD_ROW, params)
                if cursor.fetchone() is None:
                    raise LostClaim(f"Task {claim.id} was taken from worker {self.worker_id} before it began.")
            return_value = work()
            ending = Ending(claim.id, claim.version, claim.attempt, started, time.monotonic(), return_value)
            if completion.flush(connection, self.worker_id, [ending]).refused:
                raise LostClaim(f"Task {claim.id} was taken from worker {self.worker_id} while it ran.")
        return return_value

    def clean_up(self) -> None:
        """Close what a failed handler left in a transaction or lost, so that the next task does not meet it.

        This opens no new session: the database may be away.
        """
        for used in opened():
            if used.in_atomic_block or is_closed(used) or is_in_transaction(used):
                forget(used)
            else:
                used.close_if_unusable_or_obsolete()


@dataclass(slots=True, eq=False)
class _Run:
    """The handler's call, and the framework's result of it, which is made when somebody reads it."""

    claim: Claim
    task: PostgresTask
    worker_id: str
    args: list[Any]
    kwargs: dict[str, Any]
    _result: TaskResult | None = None

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
        """Call the handler. Returns its return value as JSON text."""
        context: tuple[TaskContext, ...] = (TaskContext(task_result=self.result),) if self.task.takes_context else ()
        value = self.task.call(*context, *self.args, **self.kwargs)
        if self._result is not None:
            object.__setattr__(self._result, "_return_value", value)
        return None if value is None else arguments.encode_return_value(value)

    def finish(self, status: TaskResultStatus) -> None:
        """Send the signal of its end. A receiver that fails is logged and changes nothing."""
        object.__setattr__(self.result, "status", status)
        object.__setattr__(self.result, "finished_at", timezone.now())
        task_finished.send_robust(self.sender, task_result=self.result)


def describe(
    error: BaseException, claim: Claim, task: PostgresTask, args: list[Any], kwargs: dict[str, Any]
) -> Failure:
    """The record of a failed attempt, and when the next one is due."""
    exception_class, traceback = redaction.describe_exception(error, task, args, kwargs)
    return Failure(exception_class, traceback, retry_seconds(task, claim.attempt), place=place_of(error))


def place_of(error: BaseException) -> str:
    """The last frame of the project's own code, as `shop/tasks.py:charge_card`; without one, the last frame.

    The path is as long as the module's name, so that it is the same on every host. Without a line number, so that an
    edit elsewhere in the file changes nothing.
    """
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    own = [frame for frame in frames if not is_library(frame.f_code.co_filename)]
    if not frames:
        return ""
    frame = (own or frames)[-1]
    path, module = PurePath(frame.f_code.co_filename), str(frame.f_globals.get("__name__", ""))
    depth = module.count(".") + 1 + (path.stem == "__init__")
    return one_line(f"{'/'.join(path.parts[-depth:])}:{frame.f_code.co_qualname}")[:LONGEST_PLACE]


def is_library(path: str) -> bool:
    """True for Python's own code, installed packages and the queue itself."""
    return path.startswith((*LIBRARIES, "<")) or not INSTALLED.isdisjoint(PurePath(path).parts)


def retry_seconds(task: PostgresTask, attempt: int) -> float:
    """The task's own backoff, or exponential with jitter; a backoff that itself fails does not lose the failure."""
    if task.backoff is None:
        return backoff.exponential(attempt)
    try:
        return max(0.0, float(task.backoff(attempt)))
    except Exception:
        logger.exception("the backoff of %s failed for attempt %s; using the default", task.module_path, attempt)
        return backoff.exponential(attempt)
