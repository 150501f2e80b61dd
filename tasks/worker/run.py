"""Running the handler of a claimed task to its end."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import psycopg
from django.db import connection, transaction
from django.utils import timezone

from tasks import conf
from tasks.compat import (
    FRAMEWORK,
    BaseTaskBackend,
    TaskResult,
    TaskResultStatus,
    log_task_finished,
    log_task_started,
    task_finished,
    task_started,
)
from tasks.exceptions import LostClaim
from tasks.framework import arguments, payload, redacted_calls, results
from tasks.framework.context import Attempt, Report, TaskContext
from tasks.framework.declaration import PostgresTask
from tasks.queue import completion
from tasks.queue.claim import Claim
from tasks.queue.completion import Ending, Failure
from tasks.queue.reports import Reports
from tasks.support import tracing
from tasks.worker import connections, failures

logger = logging.getLogger(__name__)

Work = Callable[[], str | None]
# The framework's own receivers, which log each successful run at INFO.
LOGS = {id(log_task_started), id(log_task_finished)}
HOLD_ROW = """
SELECT 1 FROM tasks_task
WHERE id = %(id)s::bigint AND claimed_by = %(worker_id)s::text AND attempt = %(attempt)s::int
FOR NO KEY UPDATE
"""


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

    def __init__(
        self,
        worker_id: str,
        reports: Reports,
        checkpoint: Callable[[int], Any],
        *,
        holds_row: bool = False,
        epoch: Callable[[], str] = str,
        earlier_span: Callable[[int], str | None] = lambda task_id: None,
    ) -> None:
        """`checkpoint` and `earlier_span`: what an earlier attempt of a task has kept, and its span.

        `epoch`: that of the worker's session now.
        """
        self.worker_id = worker_id
        self.reports = reports
        self.checkpoint = checkpoint
        self.epoch = epoch
        self.earlier_span = earlier_span
        self.holds_row = holds_row
        self.look_around()
        # A transaction that holds the row writes the completion, which is never relaxed. A pooling proxy would lend the
        # relaxed session to others.
        self.may_relax = not holds_row and not conf.get("DIRECT_DATABASE_URL")
        self.relaxes_all: bool = conf.get("RELAXED_COMMIT")

    def begin_batch(self) -> None:
        """Look who hears and who traces, and close old connections."""
        self.look_around()
        connections.refresh()

    def look_around(self) -> None:
        """Look whether somebody hears the signals and whether somebody traces: for each task it would cost too much."""
        self.is_heard = are_heard()
        self.tracer = tracing.tracer()

    def relaxes(self, task: PostgresTask) -> bool:
        """True if the handler's own commits need not wait for the disk, because that of its completion does."""
        return self.may_relax and (self.relaxes_all if task.relaxed_commit is None else task.relaxed_commit)

    def run(self, claim: Claim, task: PostgresTask) -> Ending:
        """Run the handler of one claim to its end; an exception of the handler is its outcome, never the caller's."""
        run = _Run(claim.id, claim.attempt, self.worker_id, claim.traceparent, claim, task, self)
        token = tracing.RUNNING.set(run)
        try:
            if self.tracer is None:
                return self._run(run)
            with self._recording(run) as span:
                if self._wants_link(run, span):
                    span.link(self._earlier_span(run))
                return _recorded(run, span, self._run(run))
        finally:
            tracing.RUNNING.reset(token)

    def _run(self, run: "_Run") -> Ending:
        claim, task, started = run.claim, run.task, time.monotonic()
        if unreadable := run.read_arguments():
            return run.end(started, failure=unreadable)
        is_relaxed = self.relaxes(task)
        connections.relax(is_relaxed)
        epoch = self.epoch() if is_relaxed else None
        return_value, failure = None, None
        try:
            if self.is_heard:
                task_started.send(run.sender, task_result=run.result)
            if run.may_resume:
                run.state = self.checkpoint(claim.id)
            return_value = self.call(claim, run.work)
        except BaseException as error:  # noqa: BLE001  SystemExit and KeyboardInterrupt of a handler are its failure too
            failure = failures.describe(error, claim, task, run.args, run.kwargs)
            # Inside the except block: the framework's logger reads the exception from sys.exc_info(), secrets and all.
            with redacted_calls.logged_as(failure.traceback):
                run.finish(TaskResultStatus.FAILED)
            self.clean_up()
        else:
            if self.is_heard:
                run.finish(TaskResultStatus.SUCCESSFUL)
        return run.end(started, return_value, failure, epoch)

    async def run_coroutine(self, claim: Claim, task: PostgresTask, was_ended: Callable[[], Failure | None]) -> Ending:
        """Run an `async def` handler on this thread's event loop; `was_ended`: why we cancelled it, if we did."""
        run = _Run(claim.id, claim.attempt, self.worker_id, claim.traceparent, claim, task, self)
        tracing.RUNNING.set(run)  # each coroutine has a context of its own
        if self.tracer is None:
            return await self._run_coroutine(run, was_ended)
        with self._recording(run) as span:
            if self._wants_link(run, span):
                span.link(await asyncio.to_thread(self._earlier_span, run))
            return _recorded(run, span, await self._run_coroutine(run, was_ended))

    async def _run_coroutine(self, run: "_Run", was_ended: Callable[[], Failure | None]) -> Ending:
        claim, task, started = run.claim, run.task, time.monotonic()
        if unreadable := run.read_arguments():
            return run.end(started, failure=unreadable)
        epoch = self.epoch() if self.relaxes(task) else None
        return_value, failure = None, None
        has_guests = self.is_heard and have_guests()  # they may use the database, which a coroutine may not
        try:
            if has_guests:
                await task_started.asend(run.sender, task_result=run.result)
            elif self.is_heard:
                task_started.send(run.sender, task_result=run.result)
            if run.may_resume:
                run.state = await asyncio.to_thread(self.checkpoint, claim.id)
            run.is_at_work = True
            try:
                value = await task.func(*run.context, *run.args, **run.kwargs)
            finally:
                run.is_at_work = False
            return_value = run.encode(value)
            if was_ended():
                raise asyncio.CancelledError
        except BaseException as error:  # noqa: BLE001  as above; the event loop must not end either
            failure = was_ended() or failures.describe(error, claim, task, run.args, run.kwargs)
            with redacted_calls.logged_as(failure.traceback):
                await run.finish_coroutine(TaskResultStatus.FAILED, has_guests=has_guests)
        else:
            if self.is_heard:
                await run.finish_coroutine(TaskResultStatus.SUCCESSFUL, has_guests=has_guests)
        return run.end(started, return_value, failure, epoch)

    def _recording(self, run: "_Run") -> tracing.Recording:
        return tracing.Recording(self.tracer, run, run.claim.queue_name, run.claim.task_path)

    def _wants_link(self, run: "_Run", span: tracing.Recording) -> bool:
        return run.attempt > 1 and span.is_kept

    def _earlier_span(self, run: "_Run") -> str | None:
        """The span of the latest attempt that has failed. A link is no reason to fail."""
        try:
            return self.earlier_span(run.task_id)
        except psycopg.Error as error:
            logger.warning("task %s is traced without its earlier attempt: %s", run.task_id, str(error).strip())
            return None

    def clean_up(self) -> None:
        """Leave this thread's connections usable after a handler that failed."""
        connections.clean_up()

    def call(self, claim: Claim, work: Work) -> str | None:
        """Call the handler through `work`. Returns its return value as JSON text."""
        if self.holds_row:
            return self._call_holding_row(claim, work)
        return_value = work()
        connections.leave_no_transaction_open()
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


def _recorded(run: "_Run", span: tracing.Recording, ending: Ending) -> Ending:
    """The ending, with its failure in the span and the span in its failure."""
    failure = ending.failure
    if failure is not None and span.is_kept:
        span.fail(failure.exception_class or failure.outcome, failure.traceback)
        ending.failure = replace(failure, traceparent=run.traceparent)
    return ending


@dataclass(slots=True, eq=False)
class _Run(Attempt):
    """The handler's call, and the framework's result of it, which is made when somebody reads it."""

    claim: Claim
    task: PostgresTask
    runner: Runner
    args: list[Any] = field(init=False)
    kwargs: dict[str, Any] = field(init=False)
    state: Any = None  # the last checkpoint of an earlier attempt
    _report: Report | None = None
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
                worker_id=self.runner.worker_id,
                enqueued_at=datetime.fromisoformat(self.claim.created_at).astimezone(UTC),
                started_at=timezone.now(),
            )
        return self._result

    @property
    def sender(self) -> type[BaseTaskBackend]:
        return type(self.task.get_backend())

    @property
    def may_resume(self) -> bool:
        """True if an earlier attempt may have kept a checkpoint for this one."""
        return self.task.takes_context and self.claim.attempt > 1

    @property
    def context(self) -> tuple[TaskContext, ...]:
        if not self.task.takes_context:
            return ()
        return (TaskContext(task_result=self.result, own=self.report(), state=self.state),)

    def report(self) -> Report:
        if self._report is None:
            redact = redacted_calls.redactor(self.task, self.args, self.kwargs)
            self._report = Report(self.claim.id, self.claim.attempt, self.task.lowest_level(), redact)
            self.runner.reports.begin(self._report)
        return self._report

    def read_arguments(self) -> Failure | None:
        """Read the arguments; the failure of the attempt if nobody can."""
        try:
            self.args, self.kwargs = self.claim.arguments()
        except (ValueError, RecursionError) as error:  # a program that is not Python may have written them
            return failures.describe(error, self.claim, self.task, [], {})
        return None

    def end(
        self, started: float, value: str | None = None, failure: Failure | None = None, epoch: str | None = None
    ) -> Ending:
        """End what the attempt tells, and the attempt; one that was told of its cancel is cancelled."""
        if self._report is not None:
            self.runner.reports.end(self._report, has_failed=failure is not None)
            failure = failures.CANCELLED if self._report.has_heard else failure
        claim = self.claim
        return Ending(
            claim.id,
            claim.version,
            claim.attempt,
            started,
            time.monotonic(),
            None if failure else value,
            failure,
            epoch,
        )

    def work(self) -> str | None:
        """Call the handler. Returns its return value as JSON text."""
        self.is_at_work = True
        try:
            value = self.task.call(*self.context, *self.args, **self.kwargs)
        finally:
            self.is_at_work = False
        return None if value is None and self._result is None else self.encode(value)

    def encode(self, value: Any) -> str | None:
        """The handler's return value as JSON text; the result of the run has it too."""
        if self._result is not None:
            object.__setattr__(self._result, "_return_value", value)
        if value is None:
            return None
        text = arguments.encode_return_value(value)
        return payload.sealed(text) if payload.seals(self.task) else text

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
