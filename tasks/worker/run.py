"""Running the handler of a claimed task, and keeping a thread's Django connections usable between two tasks."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from sysconfig import get_path
from traceback import walk_tb
from typing import Any

from django.db import Error, close_old_connections, connection, connections, reset_queries, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.utils import timezone

import tasks
from tasks import conf
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
from tasks.exceptions import LostClaim, TimedOut
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
RELAX = "SET synchronous_commit = off"
WAIT_FOR_DISK = "RESET synchronous_commit"


class _Thread(threading.local):
    """What this thread runs: the connections that it opened, and if its commits may be lost in a crash."""

    opened: list[BaseDatabaseWrapper] | None = None
    is_relaxed = False


_thread = _Thread()


def watch() -> list[BaseDatabaseWrapper]:
    """Note the connections that this thread opens: asking Django for them took two microseconds a task."""
    _thread.opened = list(connections.all(initialized_only=True))
    connection_created.connect(_note, dispatch_uid="rowlock:worker")
    return _thread.opened


def _note(connection: BaseDatabaseWrapper, **_: object) -> None:
    if _thread.opened is None:
        return
    if connection not in _thread.opened:
        _thread.opened.append(connection)
    if _thread.is_relaxed and connection.alias == "default":
        _set(connection, RELAX)


def opened() -> Sequence[BaseDatabaseWrapper]:
    """This thread's connections; those that were never used may be missing."""
    return connections.all(initialized_only=True) if _thread.opened is None else tuple(_thread.opened)


def relax(wanted: bool) -> None:
    """Let this thread's commits to the database of the tasks not wait for the disk, or wait as the session's default.

    A session that is opened later follows, and one that cannot be set is closed. Other databases are never relaxed: the
    order of their WAL proves nothing about ours.
    """
    if _thread.is_relaxed == wanted:
        return
    _thread.is_relaxed = wanted
    session = connections["default"]
    if session.connection is not None:
        try:
            _set(session, RELAX if wanted else WAIT_FOR_DISK)
        except Error:
            forget(session)


def _set(connection: BaseDatabaseWrapper, statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


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
    if _thread.opened is not None and connection in _thread.opened:
        _thread.opened.remove(connection)


def refresh() -> None:
    """Do what a request does for a view: close connections that are too old or broken, and empty query logs."""
    if any(connection.connection is not None for connection in opened()):
        close_old_connections()
        reset_queries()


def clean_up() -> None:
    """Close what a failed handler left in a transaction or lost, so that the next task does not meet it.

    This opens no new session: the database may be away.
    """
    for used in opened():
        if used.in_atomic_block or is_closed(used) or is_in_transaction(used):
            forget(used)
        else:
            used.close_if_unusable_or_obsolete()


def have_guests() -> bool:
    """True if the signals of a run have a receiver beside the framework's log."""
    keys = [key for signal in (task_started, task_finished) for key, *_ in signal.receivers]
    return any(receiver not in LOGS for receiver, _ in keys)


def are_heard() -> bool:
    """True if a successful run's signals have a receiver: another than the framework's log, or that log at INFO.

    Without this check, sending the signals took a third of a worker's time when its tasks were very short.
    """
    return have_guests() or logging.getLogger(FRAMEWORK).isEnabledFor(logging.INFO)


class Runner:
    """Runs handlers. With `holds_row` each runs in a transaction that holds its task's row."""

    def __init__(self, worker_id: str, *, holds_row: bool = False, epoch: Callable[[], str] = str) -> None:
        """`epoch`: that of the worker's session now."""
        self.worker_id = worker_id
        self.epoch = epoch
        self.holds_row = holds_row
        self.is_heard = True
        # A transaction that holds the row writes the completion, which is never relaxed. A pooling proxy would lend the
        # relaxed session to others.
        self.may_relax = not holds_row and not conf.get("DIRECT_DATABASE_URL")
        self.relaxes_all: bool = conf.get("RELAXED_COMMIT")

    def begin_batch(self) -> None:
        """Look who hears the signals, and close old connections."""
        self.is_heard = are_heard()
        refresh()

    def relaxes(self, task: PostgresTask) -> bool:
        """True if the handler's own commits need not wait for the disk, because that of its completion does."""
        return self.may_relax and (self.relaxes_all if task.relaxed_commit is None else task.relaxed_commit)

    def run(self, claim: Claim, task: PostgresTask) -> Ending:
        """Run the handler of one claim to its end; an exception of the handler is its outcome, never the caller's."""
        started = time.monotonic()
        run = self._prepare(claim, task, started)
        if isinstance(run, Ending):
            return run
        epoch = None
        if self.relaxes(task):
            relax(True)
            epoch = self.epoch()
        elif _thread.is_relaxed:
            relax(False)
        return_value, failure = None, None
        try:
            if self.is_heard:
                task_started.send(run.sender, task_result=run.result)
            return_value = self.call(claim, run.work)
        except BaseException as error:  # noqa: BLE001  SystemExit and KeyboardInterrupt of a handler are its failure too
            failure = describe(error, claim, task, run.args, run.kwargs)
            # Inside the except block: the framework's logger reads the exception from sys.exc_info(), secrets and all.
            with redaction.logged_as(failure.traceback):
                run.finish(TaskResultStatus.FAILED)
            clean_up()
        else:
            if self.is_heard:
                run.finish(TaskResultStatus.SUCCESSFUL)
        return Ending(claim.id, claim.version, claim.attempt, started, time.monotonic(), return_value, failure, epoch)

    async def run_coroutine(self, claim: Claim, task: PostgresTask, was_ended: Callable[[], Failure | None]) -> Ending:
        """Run an `async def` handler on this thread's event loop; `was_ended`: why we cancelled it, if we did."""
        started = time.monotonic()
        run = self._prepare(claim, task, started)
        if isinstance(run, Ending):
            return run
        epoch = self.epoch() if self.relaxes(task) else None
        return_value, failure = None, None
        has_guests = self.is_heard and have_guests()  # they may use the database, which a coroutine may not
        try:
            if has_guests:
                await task_started.asend(run.sender, task_result=run.result)
            elif self.is_heard:
                task_started.send(run.sender, task_result=run.result)
            return_value = run.encode(await task.func(*run.context, *run.args, **run.kwargs))
            if was_ended():
                raise asyncio.CancelledError
        except BaseException as error:  # noqa: BLE001  as above; the event loop must not end either
            failure = was_ended() or describe(error, claim, task, run.args, run.kwargs)
            with redaction.logged_as(failure.traceback):
                await run.finish_coroutine(TaskResultStatus.FAILED, has_guests=has_guests)
        else:
            if self.is_heard:
                await run.finish_coroutine(TaskResultStatus.SUCCESSFUL, has_guests=has_guests)
        value = None if failure else return_value
        return Ending(claim.id, claim.version, claim.attempt, started, time.monotonic(), value, failure, epoch)

    def _prepare(self, claim: Claim, task: PostgresTask, started: float) -> "_Run | Ending":
        """The run of a claim; its end already if nobody can read the arguments."""
        try:
            args, kwargs = claim.arguments()
        except (ValueError, RecursionError) as error:  # a program that is not Python may have written them
            unreadable = describe(error, claim, task, [], {})
            return Ending(claim.id, claim.version, claim.attempt, started, time.monotonic(), failure=unreadable)
        return _Run(claim, task, self.worker_id, args, kwargs)

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

    @property
    def context(self) -> tuple[TaskContext, ...]:
        return (TaskContext(task_result=self.result),) if self.task.takes_context else ()

    def work(self) -> str | None:
        """Call the handler. Returns its return value as JSON text."""
        value = self.task.call(*self.context, *self.args, **self.kwargs)
        return None if value is None and self._result is None else self.encode(value)

    def encode(self, value: Any) -> str | None:
        """The handler's return value as JSON text; the result of the run has it too."""
        if self._result is not None:
            object.__setattr__(self._result, "_return_value", value)
        return None if value is None else arguments.encode_return_value(value)

    def finish(self, status: TaskResultStatus) -> None:
        """Send the signal of its end. A receiver that fails is logged and changes nothing."""
        self._note_end(status)
        task_finished.send_robust(self.sender, task_result=self.result)

    async def finish_coroutine(self, status: TaskResultStatus, *, has_guests: bool) -> None:
        """The same on an event loop; guests are called in a thread, and a log must not wait for one."""
        if has_guests:
            self._note_end(status)
            await task_finished.asend_robust(self.sender, task_result=self.result)
        else:
            self.finish(status)

    def _note_end(self, status: TaskResultStatus) -> None:
        object.__setattr__(self.result, "status", status)
        object.__setattr__(self.result, "finished_at", timezone.now())


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


def timed_out(claim_attempt: int, task: PostgresTask, seconds: float) -> Failure:
    """The record of an attempt that its timeout ended after so many seconds."""
    text = f"Ended after {seconds:.1f} s: its timeout is {task.timeout} s."
    name = f"{TimedOut.__module__}.{TimedOut.__qualname__}"
    return Failure(name, text, retry_seconds(task, claim_attempt), outcome="timed_out")


def retry_seconds(task: PostgresTask, attempt: int) -> float:
    """The task's own backoff, or exponential with jitter; a backoff that itself fails does not lose the failure."""
    if task.backoff is None:
        return backoff.exponential(attempt)
    try:
        return max(0.0, float(task.backoff(attempt)))
    except Exception:
        logger.exception("the backoff of %s failed for attempt %s; using the default", task.module_path, attempt)
        return backoff.exponential(attempt)
