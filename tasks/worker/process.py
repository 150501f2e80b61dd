"""The loop of one worker process: fetch a batch, run its tasks, keep their endings for the completer."""

import contextlib
import logging
import os
import random
import signal
import time
from dataclasses import dataclass, field
from typing import Any

import psycopg

from tasks.exceptions import Convicted
from tasks.framework import declaration
from tasks.framework.context import capture_logs
from tasks.framework.declaration import PostgresTask
from tasks.queue import release, reports
from tasks.queue.claim import Claim
from tasks.queue.shortcut import is_walk_due
from tasks.queue.strategies import STRATEGIES
from tasks.support import tracing
from tasks.worker import connections
from tasks.worker.complete import Background, Completer
from tasks.worker.fetch import Fetcher
from tasks.worker.leader import Leadership, LeaderToken, drain
from tasks.worker.options import Options, leave, register
from tasks.worker.run import Runner
from tasks.worker.session import LOST, READ_ONLY, Session, readable_within
from tasks.worker.shared_state import Allowance, SharedState

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.03
LEAVE_SECONDS = 3.0
# Exit statuses that the supervisor understands.
DONE, ID_TAKEN, RETIRED, REPLACED = 0, 81, 82, 83
WORN_OUT = "worker %s ends and another takes its place: an open transaction keeps the index rows of its %s tasks"


@dataclass(eq=False)
class WorkerProcess:
    """The loop of one worker process.

    `lifeline` closes when the supervisor dies; `busy` tells it that work began; its workers share the leader `token`.
    `early_signals`: those that came after the fork and before this process had handlers of its own.
    """

    worker_id: str
    options: Options
    state: SharedState
    allowance: Allowance
    token: LeaderToken
    lifeline: int
    busy: int
    early_signals: list[int] = field(default_factory=list)
    is_stopping: bool = False

    def __post_init__(self) -> None:
        self.wake_read, self.wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.holds_row = STRATEGIES[self.options.strategy].holds_row
        self.session = Session(self.worker_id, self.state)
        self.completer = Completer(self.worker_id, self.state)
        self.fetcher = Fetcher(self.options, self.session, self.completer, self.allowance)
        self.runner = Runner(
            self.worker_id,
            self.completer.reports,
            self.checkpoint,
            holds_row=self.holds_row,
            epoch=lambda: self.session.epoch,
            earlier_span=self.earlier_span,
        )
        self.leadership = Leadership(self.session, self.token, wakes=self.wake_read)
        self.background = self.make_background()

    def make_background(self) -> Background:
        return Background(self.session, self.completer, self.leadership, lifeline=self.lifeline, stop=self.stop)

    def main(self) -> int:
        """Run until stopped, done or convicted; the exit status."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the supervisor decides
        signal.signal(signal.SIGTERM, self.stop)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        if signal.SIGTERM in self.early_signals:
            self.stop()
        if not self.session.open(lambda connection: register(connection, self.worker_id, self.options)):
            return ID_TAKEN
        self.state.registered = 1
        self.runner.look_around()
        connections.watch()
        capture_logs()
        self.background.start()
        try:
            self.loop()
            if self.fetcher.is_worn_out:
                logger.info(WORN_OUT, self.worker_id, self.state.claimed)
            if self.background.conviction is not None:
                raise self.background.conviction
            return REPLACED if self.state.has_closed() else DONE
        except Convicted as error:
            logger.warning("%s Its work is dropped; it starts again under a new id.", error)
            return RETIRED
        finally:
            self.background.end()
            self.leave()
            tracing.flush()

    def stop(self, *_: object) -> bool:
        """Claim no more: what runs is finished, what has not begun is released. True if nobody had asked before."""
        is_new, self.is_stopping = not self.is_stopping, True
        self.wake()
        return is_new

    def checkpoint(self, task_id: int) -> Any:
        """Return the checkpoint of an earlier attempt, or None. An outage is waited out: it is no handler's failure."""
        while True:
            try:
                return self.session.run(lambda connection: reports.checkpoint(connection, task_id))
            except (*LOST, READ_ONLY) as error:
                logger.warning("task %s begins once its checkpoint can be read: %s", task_id, str(error).strip())
            time.sleep(self.session.retry_in() or RETRY_SECONDS)

    def earlier_span(self, task_id: int) -> str | None:
        """Return the span of the task's latest failed attempt, or None. Raises psycopg.Error."""
        return self.session.run(lambda connection: reports.earlier_span(connection, task_id))

    def wake(self) -> None:
        """Make the main thread look again for what there is to do."""
        with contextlib.suppress(BlockingIOError):
            os.write(self.wake_write, b"x")

    def loop(self) -> None:
        while not (self.is_stopping or self.allowance.is_spent or self.fetcher.is_worn_out):
            try:
                batch = self.next_batch()
                if batch:
                    self.leadership.found_work(got_several=self.fetcher.full_claims > 0 and len(batch) > 1)
                    self.run_batch(batch)
                elif not self.options.burst:
                    self.completer.close()
                    self.leadership.wait_for_work(lambda: self.is_stopping, look_in=self.fetcher.claimer.look_in)
                elif self.fetcher.claimer.has_been_round:
                    return
            except psycopg.Error as error:
                self.pause(error)

    def next_batch(self, *room: int) -> list[Claim]:
        """Claim; another worker leads meanwhile if that takes long."""
        if is_walk_due(self.fetcher.claimer):
            self.leadership.step_aside()
        return self.fetcher.next_batch(*room)

    def run_batch(self, batch: list[Claim]) -> None:
        """Run the claimed tasks in order; give back what could not begin."""
        self.state.publish(batch, self.completer.ids())
        self.fetcher.work_ahead()
        self.note_busy()
        self.leadership.begin_work()
        self.background.begin_batch()
        self.runner.begin_batch()
        began = time.monotonic()
        refused: list[Claim] = []
        reached = 0
        for reached, claim in enumerate(batch):
            task = declaration.find(claim.task_path)
            if not self.may_begin(reached, task):
                break
            if task is None or claim.is_locked():
                refused.append(claim)
            else:
                self.execute(claim, task)
        else:
            reached = len(batch)
        self.fetcher.size.learn(reached - len(refused), time.monotonic() - began)
        self.end_batch(batch[reached:], refused)

    def note_busy(self) -> None:
        """Tell the supervisor that it has something to watch."""
        if not self.state.busy:
            self.state.busy = 1
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(self.busy, b"x")

    def may_begin(self, index: int, task: PostgresTask | None) -> bool:
        """True if the task at `index` may begin: no stop was asked, the lease holds, the batch was not taken back."""
        if self.is_stopping or not self.state.is_lease_fresh(self.session.lease_seconds):
            return False
        return self.state.begin(index, task.timeout if task else None)

    def execute(self, claim: Claim, task: PostgresTask) -> None:
        """Run one task; the completer has its ending before the shared state says that it is over."""
        ending = self.runner.run(claim, task)
        if self.holds_row and not ending.failure:
            self.completer.note_completed()
        else:
            self.completer.add(ending)
        self.state.end()
        if task.durable:
            self.background.flush()

    def end_batch(self, unstarted: list[Claim], refused: list[Claim]) -> None:
        """Give back tasks that have not begun, and those that this worker cannot begin."""
        self.background.end_batch()
        self.state.clear()
        self.give_back(unstarted, refused)

    def give_back(self, unstarted: list[Claim], refused: list[Claim]) -> None:
        """Give back tasks that have not begun; the refused ones are parked, because nothing here can run them.

        The report counts none of them as claimed, nor do they count towards `--max-tasks`.
        """
        given_back = len(unstarted) + len(refused)
        self.state.claimed -= given_back
        self.allowance.give_back(given_back)
        self.fetcher.give_back(unstarted)
        unknown = [claim for claim in refused if declaration.find(claim.task_path) is None]
        self.fetcher.give_back(unknown, parked_for=release.UNKNOWN)
        for path in {claim.task_path for claim in unknown}:
            logger.warning("no task is registered as %r here; its tasks are given back, no attempt is spent", path)
        locked = [claim for claim in refused if declaration.find(claim.task_path) is not None]
        self.fetcher.give_back(locked, parked_for=release.LOCKED)
        for path in {claim.task_path for claim in locked}:
            logger.warning(
                "no key in ROWLOCK_PAYLOAD_KEYS opens arguments of %s; its tasks are given back, no attempt is spent",
                path,
            )  # fmt: skip

    def pause(self, error: psycopg.Error) -> None:
        """Log what went wrong and wait a moment; a lost database is tried again with growing pauses."""
        if self.session.connection is None or self.session.is_read_only:
            logger.warning("worker %s lost the database, trying again: %s", self.worker_id, str(error).strip())
        else:
            logger.error("worker %s could not claim: %s", self.worker_id, self.session.told(error))
        seconds = self.session.retry_in() or RETRY_SECONDS * random.uniform(1, 3)  # noqa: S311
        if not self.is_stopping:
            readable_within([self.wake_read], seconds)
        drain(self.wake_read)

    def leave(self) -> None:
        """Flush for the last time and close the worker's row; recovery finds what cannot be written."""
        deadline = time.monotonic() + LEAVE_SECONDS
        while True:
            try:
                self.session.run(self.completer.flush)
                self.session.run(self.fetcher.leave)
                if not self.state.has_closed():  # else its supervisor writes why it was replaced
                    self.session.run(lambda connection: leave(connection, self.worker_id))
                break
            except Convicted:
                self.completer.write_late()
                break
            except psycopg.Error as error:
                if time.monotonic() > deadline:
                    logger.error("worker %s could not say goodbye: %s", self.worker_id, str(error).strip())
                    break
                time.sleep(self.session.retry_in() or RETRY_SECONDS)
        self.completer.close()
        self.session.forget()
