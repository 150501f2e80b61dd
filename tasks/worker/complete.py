"""Writing how tasks ended, while the next ones are claimed and run.

With one session alone a worker waits for the server half of its time. So a second one is opened when there is much to
write. It holds nothing between two writes, and is closed when there is nothing to do.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import psycopg

from tasks.diagnosis import lock_holders
from tasks.exceptions import Convicted
from tasks.queue import completion, presence, release
from tasks.queue.completion import RELEASED, Ending, Failure, Flush
from tasks.queue.reports import Reports
from tasks.queue.throughput import SumsByQueue
from tasks.worker.leader import HAND_OVER_SECONDS, Leadership
from tasks.worker.session import Session, connect, readable_within
from tasks.worker.shared_state import CANCEL_SECONDS, SharedState

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 0.05
SEND_FROM = 100  # fewer are written together with the next claim, in one commit
ALONE_SECONDS = 5.0  # after a second session was refused, the next attempt waits as long
WAKE_SECONDS = 1.0
LEAVE_SECONDS = 3.0


class Completer:
    """The endings of one worker process: its main thread adds them, either thread flushes them, one at a time.

    With much to write, a second session sends them. They stay here until its answer is read, first of all by a flush.
    """

    def __init__(self, worker_id: str, state: SharedState) -> None:
        self.worker_id = worker_id
        self.state = state
        self.reports = Reports(worker_id)
        self._endings: list[Ending] = []
        self._endings_lock = threading.Lock()
        self._flush_lock = threading.RLock()  # for all that follows; taken before the other one
        self.alone_until = 0.0  # by `time.monotonic()`
        self.second_session: psycopg.Connection | None = None
        self.second_epoch = ""
        self._sent: list[Ending] = []  # and not answered
        self._sent_at = 0.0  # by `time.monotonic()`
        self._read: Callable[[], Flush] = Flush
        self._carried: SumsByQueue = {}
        self._locked: set[int] = set()
        self._needs_flush = False

    def add(self, ending: Ending) -> None:
        with self._endings_lock:
            self._endings.append(ending)
            self.state.unwritten = len(self._endings)

    def note_completed(self) -> None:
        """Count a task whose own transaction has written its completion."""
        with self._endings_lock:
            self.state.completed += 1

    def ids(self) -> set[int]:
        """The tasks that ended here and are not written yet."""
        with self._endings_lock:
            return {ending.id for ending in self._endings}

    def __len__(self) -> int:
        return len(self._endings)

    def is_due(self) -> bool:
        """True if the oldest ending has waited long enough, since it was sent or else since its task ended.

        What is on its way is written by itself, unless its row was locked or had moved on.
        """
        endings = self._endings
        if not endings:
            return False
        since = self._sent_at if self._sent else endings[0].finished
        return time.monotonic() - since >= FLUSH_SECONDS

    def flush(self, connection: psycopg.Connection) -> Flush:
        """Write everything that has ended. On an error all of it is kept, but for what can never be written."""
        with self.flushing(connection) as result:
            return result

    @contextmanager
    def flushing(self, connection: psycopg.Connection, *, joins: bool = False) -> Iterator[Flush]:
        """Write everything that has ended; forget it when the caller's block has ended well.

        With `joins` the block belongs to the same transaction.
        """
        with self._flush_lock:
            self.read_answer()
            self._write_reports(connection)
            with self._endings_lock:
                endings = list(self._endings)
            has_work = bool(endings or self._carried)
            with connection.transaction() if joins and has_work else nullcontext():
                result = self._write(connection, endings) if has_work else Flush()
                yield result
            self._forget(endings, result)

    def _write_reports(self, connection: psycopg.Connection) -> None:
        """Write what tasks tell, before their endings: a retry finds the last checkpoint. Never in the way of those."""
        try:
            self.reports.write(connection)
        except psycopg.Error as error:
            logger.warning("what tasks tell could not be written yet: %s", str(error).strip())

    def _write(self, connection: psycopg.Connection, endings: list[Ending]) -> Flush:
        endings = self._give_back_some(connection, endings)
        try:
            return self._write_together(connection, endings)
        except psycopg.DataError:
            return self._write_one_by_one(connection, endings)

    def _give_back_some(self, connection: psycopg.Connection, endings: list[Ending]) -> list[Ending]:
        """End what has neither succeeded nor failed; returns the other endings.

        That is a cancelled coroutine, and a task whose relaxed commits a crash of the server may have lost.
        """
        if not any(ending.failure or ending.epoch for ending in endings):
            return endings
        cancelled = [ending for ending in endings if ending.failure and ending.failure.outcome == RELEASED]
        epoch = presence.epoch(connection) if any(ending.epoch for ending in endings) else ""
        doubtful = [ending for ending in endings if ending.epoch not in (None, epoch) and not ending.failure]
        for ending in cancelled + doubtful:
            is_cancel = ending.failure is not None
            release.interrupt(connection, self.worker_id, ending.id, ending.attempt, cancel=is_cancel)
        if doubtful:
            logger.warning("the server restarted: %s tasks with relaxed commits run again", len(doubtful))
        ended = {ending.id for ending in cancelled + doubtful}
        return [ending for ending in endings if ending.id not in ended] if ended else endings

    def _write_together(self, connection: psycopg.Connection, endings: list[Ending]) -> Flush:
        """All at once; once a row was found locked, around the locked ones until they are free again."""
        if not self._locked:
            try:
                return completion.flush(connection, self.worker_id, endings, carried=self._carried)
            except psycopg.errors.LockNotAvailable as error:
                told = lock_holders.told(connection, error)
                logger.warning("a finished task's row is locked by another session; flushing around it: %s", told)
        result = completion.flush(connection, self.worker_id, endings, skip_locked=True, carried=self._carried)
        self._locked = {ending.id for ending in result.locked}
        return result

    def _write_one_by_one(self, connection: psycopg.Connection, endings: list[Ending]) -> Flush:
        """Write the others beside an ending that holds what PostgreSQL cannot store (F2, F16)."""
        total = completion.flush(connection, self.worker_id, [], carried=self._carried)
        for ending in endings:
            try:
                part = completion.flush(connection, self.worker_id, [ending])
            except psycopg.DataError as error:
                text = f"PostgreSQL cannot store the outcome: {error}"
                failure = Failure("tasks.exceptions.Unstorable", text, 60.0)
                failed = replace(ending, return_value=None, failure=failure)
                part = completion.flush(connection, self.worker_id, [failed])
            total.completed += part.completed
            total.failed += part.failed
            total.refused += part.refused
        return total

    def _forget(self, endings: list[Ending], result: Flush) -> None:
        with self._endings_lock:
            self._endings = result.locked + self._endings[len(endings) :]
            self.state.unwritten = len(self._endings)
            self._carried = {}
            self._needs_flush = bool(result.locked)
            self.state.completed += result.completed
            self.state.failed += result.failed
            self.state.refused += len(result.refused)

    def may_send(self) -> bool:
        """True if enough has ended to be sent while the next tasks run, and none of it needs a flush."""
        if time.monotonic() < self.alone_until:
            return False
        with self._endings_lock:
            fresh = self._endings[len(self._sent) :]
            has_failures = any(ending.failure for ending in fresh)
            return len(fresh) >= SEND_FROM and not (self._needs_flush or self._locked or has_failures)

    def send(self) -> bool:
        """Let the second session write everything that has ended, and go on. True if it does.

        What it could not write as it is stays here, and nothing more is sent before a flush has dealt with it.
        """
        with self._flush_lock:
            self.read_answer()
            if not self.may_send():
                return False
            with self._endings_lock:
                endings = list(self._endings)
            try:
                if self.second_session is None or self.second_session.closed:
                    self.second_session = connect(self.worker_id)
                    self.second_epoch = presence.epoch(self.second_session)
                if any(ending.epoch not in (None, self.second_epoch) for ending in endings):
                    self._needs_flush = True
                    return False
                self._read = completion.send(self.second_session, self.worker_id, endings, self._carried)
            except psycopg.Error as error:
                logger.warning("worker %s goes on with one session: %s", self.worker_id, str(error).strip())
                self.alone_until = time.monotonic() + ALONE_SECONDS
                return False
            self._sent, self._sent_at = endings, time.monotonic()
            return True

    def read_answer(self) -> None:
        """Wait for the answer to what was sent. An error is logged: what was not written is still held."""
        with self._flush_lock:
            sent, self._sent = self._sent, []
            if not sent:
                return
            try:
                result = self._read()
            except psycopg.Error as error:
                logger.warning("worker %s will write again what it had sent: %s", self.worker_id, str(error).strip())
                self._end_second_session()
                self._needs_flush = True
            else:
                self._forget(sent, result)
                self._carried = dict(result.sums)

    def close(self) -> None:
        """End the second session once it has answered."""
        with self._flush_lock:
            self.read_answer()
            self._end_second_session()

    def _end_second_session(self) -> None:
        if self.second_session is not None:
            self.second_session.close()
        self.second_session = None

    def write_late(self) -> None:
        """Record the refusals of a convicted worker's endings, on a new session: its own is gone."""
        if not self._endings:
            return
        try:
            with connect(self.worker_id) as connection:
                self.flush(connection)
        except psycopg.Error as error:
            logger.error("worker %s could not say what it had done: %s", self.worker_id, str(error).strip())


class Background:
    """The second thread of a worker process: while a batch runs it flushes, and keeps the session and the lease.

    `lifeline` closes when the supervisor dies. `stop` makes the main thread claim no more, and says if that is new.
    `look_after`: what else to do in each round. A main thread that runs no tasks itself (`reads=False`) reads
    notifications all the time, and is called by `wake` when it may have missed one.
    """

    def __init__(
        self,
        session: Session,
        completer: Completer,
        leadership: Leadership,
        *,
        lifeline: int,
        stop: Callable[[], bool],
        reads: bool = True,
        look_after: Callable[[], None] = lambda: None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.worker_id, self.state = session.worker_id, session.state
        self.session = session
        self.completer = completer
        self.leadership = leadership
        self.lifeline = lifeline
        self.stop = stop
        self.reads = reads
        self.look_after = look_after
        self.wake = wake
        self.conviction: Convicted | None = None
        self._is_done = threading.Event()
        self._is_running_batch = threading.Event()
        self._batch_lock = threading.Lock()  # taken before the session's
        self._thread = threading.Thread(target=self._loop, name="background", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Let the thread end, and wait a moment for it."""
        self._is_done.set()
        self._is_running_batch.set()
        self._thread.join(timeout=LEAVE_SECONDS)

    def begin_batch(self) -> None:
        """Note that tasks run from now on."""
        self._is_running_batch.set()

    def end_batch(self) -> None:
        """Note that no task runs; from now on the main thread alone reads notifications."""
        with self._batch_lock:
            self._is_running_batch.clear()

    def flush(self) -> None:
        """Write what has ended; what cannot be written now is kept."""
        try:
            self.session.run(self.completer.flush)
        except psycopg.Error as error:
            told = self.session.told(error)
            logger.warning("the outcome of %s tasks could not be written yet: %s", len(self.completer), told)

    def _loop(self) -> None:
        while not self._is_done.is_set():
            self._is_running_batch.wait(timeout=WAKE_SECONDS)
            self._watch_lifeline()
            pause = HAND_OVER_SECONDS if self.leadership.is_handing_over else FLUSH_SECONDS
            if self._is_running_batch.is_set() and not self._is_done.wait(pause):
                try:
                    self.look_after()
                    self.work()
                except Convicted as error:
                    self.conviction = error
                    self.stop()
                except psycopg.Error as error:
                    self.wake()  # the session that it waits for may be gone
                    logger.warning("worker %s, while a task runs: %s", self.worker_id, self.session.told(error))

    def work(self) -> None:
        """One round while a batch runs. Raises psycopg.Error, or Convicted."""
        if self.reads and self.session.has_input():
            with self._batch_lock:
                if self._is_running_batch.is_set():
                    self.session.drain()
        if not self.session.is_ready and not self.session.retry_in():
            self.session.ensure()
        self.leadership.hand_over_after_long_work()
        if self.completer.is_due() or self.completer.reports.is_due():
            self.flush()
            self.wake()
        if not self.state.is_lease_fresh(self.session.lease_seconds / 2):
            self.session.run(self.session.keep_lease)

    def _watch_lifeline(self) -> None:
        """Without the supervisor finish and go, and end at a task's timeout by ourselves."""
        if not readable_within([self.lifeline], 0):
            return
        if self.stop():
            logger.warning("worker %s lost its supervisor: it finishes what runs and ends", self.worker_id)
        patience = 0.0 if self.reads else CANCEL_SECONDS  # a coroutine is cancelled first
        if any(task.late_seconds > patience for task in self.state.running()):
            logger.warning("worker %s ends itself: its task is past its timeout", self.worker_id)
            os.kill(os.getpid(), signal.SIGKILL)
