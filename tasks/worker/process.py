"""Receivers of the framework's signals task_started and task_finished."""

import contextlib
import logging
import os
import random
import select
import signal
import time

import psycopg

from tasks.compat import FRAMEWORK, log_task_finished, log_task_started, task_finished, task_started
from tasks.exceptions import Convicted
from tasks.framework import declaration
from tasks.framework.declaration import PostgresTask
from tasks.queue import release, strategies
from tasks.queue.claim import Claim, Claimer
from tasks.queue.strategies import STRATEGIES
from tasks.worker import options as registration
from tasks.worker import run
from tasks.worker.companion import Companion, Idleness, drain
from tasks.worker.complete import Outbox
from tasks.worker.fetch import Ahead, BatchSize
from tasks.worker.leader import Lookout
from tasks.worker.options import Allowance, Options
from tasks.worker.session import Session
from tasks.worker.shared_state import SharedState

logger = logging.getLogger(__name__)

# The framework's own receivers, which log each successful run at INFO.
LOGS = {id(log_task_started), id(log_task_finished)}


def are_heard() -> bool:
    """True if a successful run's signals have a receiver: another than the framework's log, or that log at INFO.

    Without this check, sending the signals took a third of a worker's time when its tasks were very short.
    """
    keys = [key for signal in (task_started, task_finished) for key, *_ in signal.receivers]
    return any(receiver not in LOGS for receiver, _ in keys) or logging.getLogger(FRAMEWORK).isEnabledFor(logging.INFO)


RETRY_SECONDS = 0.03
CHECK_SECONDS = 5.0
# So many claims in a row that got what they wanted, some 2,000 tasks, are worth a second session.
MUCH_WORK = 12
LEAVE_SECONDS = 3.0
# Exit statuses that the supervisor understands.
DONE, ID_TAKEN, RETIRED = 0, 81, 82


class Child:
    """The loop of one worker process.

    `lifeline` closes when the supervisor dies; `busy` tells it that work began; `lookout` is shared by its workers.
    """

    def __init__(
        self,
        worker_id: str,
        options: Options,
        state: SharedState,
        allowance: Allowance,
        lookout: Lookout,
        *,
        lifeline: int,
        busy: int,
    ) -> None:
        self.worker_id = worker_id
        self.options = options
        self.strategy = STRATEGIES[options.strategy]
        self.state = state
        self.allowance = allowance
        self.busy = busy
        self.session = Session(worker_id)
        self.outbox = Outbox(worker_id, state)
        self.companion = Companion(state, self.session, self.outbox, lookout, lifeline=lifeline, stop=self.stop)
        self.claimer = Claimer(worker_id, options.queues, declaration.durable_paths())
        self.ahead = Ahead(self.session, self.claimer, state)
        self.size = BatchSize(maximum=options.largest_batch)
        self.is_stopping = False
        self.is_heard = True
        self.asked_for = 0  # by the last claim
        self.full_claims = 0  # in a row: each got as much as it wanted
        self.checked_at = time.monotonic()
        self.wake_read, self.wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.idleness = Idleness(state, self.session, lookout, self.companion, wakes=self.wake_read)

    def main(self) -> int:
        """Run until stopped, done or convicted; the exit status."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the supervisor decides
        signal.signal(signal.SIGTERM, self.stop)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        if not self.session.open(lambda connection: registration.register(connection, self.worker_id, self.options)):
            return ID_TAKEN
        self.state.registered = 1
        run.watch()
        self.companion.start()
        try:
            self.loop()
            if self.companion.conviction is not None:
                raise self.companion.conviction
            return DONE
        except Convicted as error:
            logger.warning("%s Its work is dropped; it starts again under a new id.", error)
            return RETIRED
        finally:
            self.companion.end()
            self.leave()

    def stop(self, *_: object) -> bool:
        """Claim no more: what runs is finished, what has not begun is released. Whether that was not asked before."""
        is_new, self.is_stopping = not self.is_stopping, True
        with contextlib.suppress(BlockingIOError):
            os.write(self.wake_write, b"x")
        return is_new

    def loop(self) -> None:
        while not self.is_stopping and not self.allowance.is_spent:
            try:
                batch = self.next_batch()
                if batch:
                    self.idleness.end(got_several=self.full_claims > 0 and len(batch) > 1)
                    self.run_batch(batch)
                elif not self.options.burst:
                    self.rest()
                    self.idleness.spend(lambda: self.is_stopping)
                elif self.claimer.has_been_round:
                    return
            except psycopg.Error as error:
                self.pause(error)

    def rest(self) -> None:
        """There is nothing to do: a second session would stay idle."""
        with self.session.lock:
            self.outbox.close()

    def next_batch(self) -> list[Claim]:
        """Write what has ended and claim what comes next, in one transaction where the strategy allows it."""
        limit = self.allowance.take(self.size.wanted)
        batch: list[Claim] = []
        try:
            batch = self.session.run(lambda connection: self._flush_and_claim(connection, limit))
        finally:
            self.allowance.give_back(limit - len(batch))
        self.state.claimed += len(batch)
        is_full = 0 < self.asked_for == len(batch)
        self.full_claims = self.full_claims + 1 if is_full else 0
        self.size.note(is_full=is_full)
        return batch

    def _flush_and_claim(self, connection: psycopg.Connection, limit: int) -> list[Claim]:
        self.companion.keep_lease(connection)
        self._release_unknown(connection)
        if self.has_much_work and self.outbox.may_send():
            batch = self._claim(connection, limit)
            if batch:
                return batch  # what has ended is sent while these run
        is_joined = self.strategy.joins_flush and len(self.outbox) > 0
        with connection.transaction() if is_joined else contextlib.nullcontext():
            forget = self.outbox.flush(connection)
            # What is being written may be what the next tasks of ordering keys wait for.
            batch = self._claim(connection, limit)
        if forget().refused:
            self.state.lease_renewed_ns = 0  # somebody took our work: ask whether we were declared dead
        return batch

    def _claim(self, connection: psycopg.Connection, limit: int) -> list[Claim]:
        batch = self.ahead.take(connection)
        self.asked_for = self.ahead.limit if batch else limit
        return batch or strategies.claim(connection, self.claimer, limit, self.options.strategy)

    @property
    def has_much_work(self) -> bool:
        """Whether the server should work beside the handlers."""
        return self.strategy.joins_flush and self.full_claims >= MUCH_WORK

    def _release_unknown(self, connection: psycopg.Connection) -> None:
        """Now and then, and after every error: give back rows that are ours without our knowing (a lost answer)."""
        now = time.monotonic()
        if not self.session.is_unsure and now - self.checked_at < CHECK_SECONDS:
            return
        released = release.release_unknown(connection, self.worker_id, self.outbox.ids() | self.ahead.ids())
        if released:
            logger.warning(
                "worker %s released %s tasks whose claim was never answered, ids %s to %s",
                self.worker_id,
                len(released),
                min(released),
                max(released),
            )
        self.checked_at = now
        self.session.is_unsure = False

    def run_batch(self, batch: list[Claim]) -> None:
        """Run the claimed tasks in order; give back what could not begin."""
        self.state.publish(batch, self.outbox.ids())
        self._send()
        self._signal_busy()
        self.companion.begin_batch()
        run.begin_anew()
        self.is_heard = are_heard()
        began = time.monotonic()
        unknown: list[Claim] = []
        reached = 0
        for reached, claim in enumerate(batch):
            task = declaration.find(claim.task_path)
            if not self.may_begin(reached, task):
                break
            if task is None:
                unknown.append(claim)
            else:
                self.execute(claim, task)
        else:
            reached = len(batch)
        self.size.learn(reached - len(unknown), time.monotonic() - began)
        self._end_batch(batch[reached:], unknown)

    def _send(self) -> None:
        """Let the server claim what comes next and write what has ended, while the batch runs."""
        if not (self.has_much_work and self.outbox.may_send()):
            return

        def send(connection: psycopg.Connection) -> None:
            if self.options.max_tasks is None:
                self.ahead.send(connection, self.size.wanted)
            self.outbox.send()

        try:
            self.session.run(send)
        except psycopg.Error as error:
            logger.warning("worker %s claims and writes after this batch: %s", self.worker_id, str(error).strip())

    def may_begin(self, index: int, task: PostgresTask | None) -> bool:
        """Whether the task at `index` may begin: no stop was asked, the lease holds, the batch was not taken back."""
        if self.is_stopping or not self.state.is_lease_fresh(self.companion.lease_seconds):
            return False
        return self.state.begin(index, task.timeout if task else None)

    def _end_batch(self, unstarted: list[Claim], unknown: list[Claim]) -> None:
        self.companion.end_batch()
        self.state.clear()
        self.allowance.give_back(len(unstarted) + len(unknown))
        self._release(unstarted, park=False)
        self._release(unknown, park=True)
        for path in {claim.task_path for claim in unknown}:
            logger.warning("no task is registered as %r here; its tasks are given back, no attempt is spent", path)

    def _release(self, given_back: list[Claim], *, park: bool) -> None:
        """Give claims back; those that the supervisor gave back already do not match any more."""
        pairs = [(claim.id, claim.claimed_at()) for claim in given_back]
        if pairs:
            self.session.run(lambda connection: release.release(connection, self.worker_id, pairs, park=park))

    def execute(self, claim: Claim, task: PostgresTask) -> None:
        """Run one task; its ending is in the outbox before the state says that it is over."""
        if self.strategy.holds_row:
            ending = run.run(claim, task, self.worker_id, lambda work: run.run_holding(claim, self.worker_id, work))
            if ending.failure:
                self.outbox.add(ending)
            else:
                self.state.completed += 1
        else:
            ending = run.run(claim, task, self.worker_id, run.plainly, is_heard=self.is_heard)
            self.outbox.add(ending)
        self.state.end()
        if task.durable:
            self.companion.flush()

    def pause(self, error: psycopg.Error) -> None:
        """Say what went wrong and wait a moment; a lost database is tried again with growing pauses."""
        if self.session.connection is None or self.session.is_read_only:
            logger.warning("worker %s lost the database, trying again: %s", self.worker_id, str(error).strip())
        else:
            logger.error("worker %s could not claim: %s", self.worker_id, str(error).strip())
        seconds = self.session.retry_in() or RETRY_SECONDS * random.uniform(1, 3)  # noqa: S311
        if not self.is_stopping:
            select.select([self.wake_read], [], [], seconds)
        drain(self.wake_read)

    def leave(self) -> None:
        """The last flush, and the worker's row closed; what cannot be written is found by recovery."""
        deadline = time.monotonic() + LEAVE_SECONDS
        while True:
            try:
                self.session.run(lambda connection: self.outbox.flush(connection)())
                self.session.run(self.ahead.end)
                self.session.is_unsure = True
                self.session.run(self._release_unknown)
                self.session.run(lambda connection: registration.leave(connection, self.worker_id))
                break
            except Convicted:
                self.outbox.write_late()
                break
            except psycopg.Error as error:
                if time.monotonic() > deadline:
                    logger.error("worker %s could not say goodbye: %s", self.worker_id, str(error).strip())
                    break
                select.select([], [], [], self.session.retry_in() or RETRY_SECONDS)
        self.rest()
        self.session.forget()

    def _signal_busy(self) -> None:
        if not self.state.busy:
            self.state.busy = 1
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(self.busy, b"x")
