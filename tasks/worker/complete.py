"""A worker's second session: what has ended is written there while the first one claims what comes next.

With one session alone a worker waits for the server half of its time. It is opened when there is much to write, holds
nothing between two writes, and is closed when there is nothing to do.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence

import psycopg

from tasks.queue import completion
from tasks.queue.completion import Ending, Failure, Flush
from tasks.queue.throughput import SumsByQueue
from tasks.support.database import connect_directly
from tasks.worker.shared_state import SharedState

logger = logging.getLogger(__name__)


class Writer:
    """Sends completions, one lot at a time. Used under the lock of the worker's first session."""

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id
        self.connection: psycopg.Connection | None = None
        self._sent: list[Ending] = []
        self._read: Callable[[], Flush] | None = None

    @property
    def sent(self) -> list[Ending]:
        """What is under way: sent, and its answer not read."""
        return self._sent if self._read else []

    def send(self, completions: Sequence[Ending], carried: SumsByQueue) -> None:
        """Send them and go on. Raises psycopg.Error when it cannot connect: then nothing was sent."""
        if self.connection is None or self.connection.closed:
            self.connection = connect_directly(f"rowlock:worker:{self.worker_id}")
        self._sent = list(completions)
        self._read = completion.send(self.connection, self.worker_id, self._sent, carried)

    def read(self) -> Flush:
        """What became of what is under way. On a psycopg.Error it is not known to be written."""
        read, self._read = self._read, None
        if read is None:
            return Flush()
        try:
            return read()
        except psycopg.Error:
            self.close()
            raise

    def close(self) -> None:
        """End the session; an answer that is under way is read by nobody."""
        if self.connection is not None:
            self.connection.close()
        self.connection = self._read = None


FLUSH_SECONDS = 0.05
SEND_FROM = 100  # fewer are written together with the next claim, in one commit
ALONE_SECONDS = 5.0  # a second session that was refused is not asked for again sooner


class Outbox:
    """The endings of one child, filled by its main thread and flushed by either thread, one at a time.

    What was sent by the writer stays in the box until its answer is read, which every flush does first.
    """

    def __init__(self, worker_id: str, state: SharedState) -> None:
        self.worker_id = worker_id
        self.state = state
        self.writer = Writer(worker_id)
        self.alone_until = 0.0  # by `time.monotonic()`
        self._endings: list[Ending] = []
        self._guard = threading.Lock()
        self._locked: set[int] = set()
        self._carried: SumsByQueue = {}
        self._needs_flush = False
        self._sent_at = 0.0  # by `time.monotonic()`

    def add(self, ending: Ending) -> None:
        with self._guard:
            self._endings.append(ending)
            self.state.unwritten = len(self._endings)

    def ids(self) -> set[int]:
        """The tasks that ended here and are not written yet."""
        with self._guard:
            return {ending.id for ending in self._endings}

    def is_due(self) -> bool:
        """True if the oldest ending has waited for as long as one may: since it was sent, or else since its task ended.

        What is on its way is written by itself, unless its row was locked or had moved on.
        """
        endings = self._endings
        if not endings:
            return False
        since = self._sent_at if self.writer.sent else endings[0].finished
        return time.monotonic() - since >= FLUSH_SECONDS

    def __len__(self) -> int:
        return len(self._endings)

    def flush(self, connection: psycopg.Connection) -> Callable[[], Flush]:
        """Write everything that is in the box; call what it gives back once that is committed.

        On an error everything stays in the box, but for what can never be written.
        """
        self.settle()
        with self._guard:
            endings = list(self._endings)
        if not endings and not self._carried:
            return Flush
        try:
            result = self._write(connection, endings)
        except psycopg.DataError:
            result = self._write_one_by_one(connection, endings)
        return lambda: self._forget(endings, result)

    def may_send(self) -> bool:
        """Whether enough has ended to be sent while the next tasks run, and nothing of it has to be looked at."""
        if time.monotonic() < self.alone_until:
            return False
        with self._guard:
            fresh = self._endings[len(self.writer.sent) :]
            has_failures = any(ending.failure for ending in fresh)
            return len(fresh) >= SEND_FROM and not (self._needs_flush or self._locked or has_failures)

    def send(self) -> bool:
        """Let the writer send everything that has ended since, and go on; whether it did.

        What it sent before and could not write as it is stays in the box: nothing more is sent before a flush has seen
        to it.
        """
        self.settle()
        if not self.may_send():
            return False
        with self._guard:
            endings = list(self._endings)
        try:
            self.writer.send(endings, self._carried)
        except psycopg.Error as error:
            logger.warning("worker %s goes on with one session: %s", self.worker_id, str(error).strip())
            self.alone_until = time.monotonic() + ALONE_SECONDS
            return False
        self._sent_at = time.monotonic()
        return True

    def settle(self) -> None:
        """Wait for the answer to what was sent. An error is logged: what was not written is still held."""
        sent = self.writer.sent
        if not sent:
            return
        try:
            result = self._forget(sent, self.writer.read())
        except psycopg.Error as error:
            logger.warning("worker %s will write again what it had sent: %s", self.worker_id, str(error).strip())
            self._needs_flush = True
        else:
            self._needs_flush = bool(result.locked)
            self._carried = dict(result.sums)

    def close(self) -> None:
        """Let the writer go, once it has answered."""
        self.settle()
        self.writer.close()

    def write_late(self) -> None:
        """What a convicted worker has done is refused by now, and the refusals are to be kept; its session is gone."""
        if not self._endings:
            return
        try:
            with connect_directly(f"rowlock:worker:{self.worker_id}", connect_timeout=2) as connection:
                self.flush(connection)()
        except psycopg.Error as error:
            logger.error("worker %s could not say what it had done: %s", self.worker_id, str(error).strip())

    def _write(self, connection: psycopg.Connection, endings: list[Ending]) -> Flush:
        """All at once; once a row was found locked, around the locked ones until they are free again."""
        if not self._locked:
            try:
                return completion.flush(connection, self.worker_id, endings, carried=self._carried)
            except psycopg.errors.LockNotAvailable:
                logger.warning("a finished task's row is locked by another session; flushing around it")
        result = completion.flush(connection, self.worker_id, endings, skip_locked=True, carried=self._carried)
        self._locked = {ending.id for ending in result.locked}
        return result

    def _write_one_by_one(self, connection: psycopg.Connection, endings: list[Ending]) -> Flush:
        """One ending holds what PostgreSQL cannot store: it must not keep the others from being written (F2, F16)."""
        total = completion.flush(connection, self.worker_id, [], carried=self._carried)
        for ending in endings:
            try:
                part = completion.flush(connection, self.worker_id, [ending])
            except psycopg.DataError as error:
                part = completion.flush(connection, self.worker_id, [_unstorable(ending, error)])
            total.completed += part.completed
            total.failed += part.failed
            total.refused += part.refused
        return total

    def _forget(self, endings: list[Ending], result: Flush) -> Flush:
        with self._guard:
            self._endings = result.locked + self._endings[len(endings) :]
            self.state.unwritten = len(self._endings)
            self._carried = {}
            self._needs_flush = False
        self.state.completed += result.completed
        self.state.failed += result.failed
        self.state.refused += len(result.refused)
        return result


def _unstorable(ending: Ending, error: psycopg.DataError) -> Ending:
    failure = Failure("tasks.exceptions.Unstorable", f"PostgreSQL cannot store the outcome: {error}", 60.0)
    return Ending(ending.id, ending.version, ending.attempt, ending.started, ending.finished, failure=failure)
