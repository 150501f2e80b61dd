"""Endings that wait to be written together; the flush that writes them."""

import logging
import threading
import time
from collections.abc import Callable

import psycopg

from tasks import transitions
from tasks.database import connect_directly
from tasks.throughput import SumsByQueue
from tasks.transitions import Ending, Failure, Flush
from tasks.worker.page import COMPLETED, FAILED, REFUSED, UNWRITTEN, Page
from tasks.worker.reserving import Reserver
from tasks.worker.writer import Writer

logger = logging.getLogger(__name__)
FLUSH_SECONDS = 0.05
SEND_FROM = 100  # fewer are written together with the next claim, in one commit
ADD_UP_SECONDS = 0.03  # the sums for the charts are not worth a statement with each reserved batch
ALONE_SECONDS = 5.0  # a second session that was refused is not asked for again sooner


class Outbox:
    """The endings of one child, filled by its main thread and flushed by either thread, one at a time.

    What was sent, by the writer or with the end of a reserved batch, stays in the box until its answer is read, which
    every flush does first.
    """

    def __init__(self, worker_id: str, page: Page, reserver: Reserver) -> None:
        self.worker_id = worker_id
        self.page = page
        self.reserver = reserver
        self.writer = Writer(worker_id)
        self.alone_until = 0.0  # by `time.monotonic()`
        self._endings: list[Ending] = []
        self._guard = threading.Lock()
        self._locked: set[int] = set()
        self._carried: SumsByQueue = {}
        self._needs_flush = False
        self._carries = True  # whether what is under way includes the sums
        self._added_up_at = 0.0
        self._sent: list[Ending] = []
        self._sent_at = 0.0
        self._read: Callable[[], Flush] | None = None

    def add(self, ending: Ending) -> None:
        with self._guard:
            self._endings.append(ending)
            self.page.words[UNWRITTEN] = len(self._endings)

    def ids(self) -> set[int]:
        """The tasks that ended here and are not written yet."""
        with self._guard:
            return {ending.id for ending in self._endings}

    def is_due(self) -> bool:
        """Whether the oldest ending that was not sent has waited for as long as one may, or an answer has."""
        endings = self._endings
        if not endings:
            return False
        since = self._sent_at if self._sent else endings[0].finished
        return time.monotonic() - since >= FLUSH_SECONDS

    def __len__(self) -> int:
        return len(self._endings)

    def flush(self, connection: psycopg.Connection) -> Callable[[], Flush]:
        """Write everything that is in the box; call what it gives back once that is committed.

        On an error everything stays in the box, but for what can never be written.
        """
        self.settle()
        self.reserver.claim(connection, self.ids())
        with self._guard:
            endings = list(self._endings)
        if not endings and not self._carried:
            return Flush
        try:
            result = self._write(connection, endings)
        except psycopg.DataError:
            result = self._write_one_by_one(connection, endings)

        def forget() -> Flush:
            self._carried = {}
            return self._forget(endings, result)

        return forget

    def may_send(self) -> bool:
        """Whether enough has ended to be sent while the next tasks run, and nothing of it has to be looked at."""
        if time.monotonic() < self.alone_until or self.reserver.is_unsure:
            return False  # what was reserved is to be claimed first
        with self._guard:
            fresh = self._endings[len(self._sent) :]
            has_failures = any(ending.failure for ending in fresh)
            return len(fresh) >= SEND_FROM and not (self._needs_flush or self._locked or has_failures)

    def send(self) -> bool:
        """Let the writer send everything that has ended since, and go on; whether it did.

        What it sent before and could not write as it is stays in the box: nothing more is sent before a flush has seen
        to it.
        """
        if not self.may_send():
            return False  # and does not wait for what was sent
        self.settle()
        if not self.may_send():
            return False
        with self._guard:
            endings = list(self._endings)
        try:
            self._read = self.writer.send(endings, self._carried)
            self._carries = True
        except psycopg.Error as error:
            logger.warning("worker %s goes on with one session: %s", self.worker_id, str(error).strip())
            self.alone_until = time.monotonic() + ALONE_SECONDS
            return False
        self._sent_at = time.monotonic()
        self._sent = endings
        return True

    def end_reserved(self, connection: psycopg.Connection, limit: int) -> bool:
        """Let the reserver send how its batch ended, and reserve up to `limit` tasks; whether it did.

        What is left of the batches before, of ordinary claims or since it failed, is written first.
        """
        self.settle()
        if self.reserver.is_unsure:
            return False
        with self._guard:
            earlier = self._endings[: self.reserver.number_before(self._endings)]
        if earlier:
            try:
                result = self._write(connection, earlier)
            except psycopg.DataError:
                return False
            self._forget(earlier, result)
            self._carried = {}
        if self._needs_flush or self._locked:
            return False
        self._sent_at = time.monotonic()
        with self._guard:
            self._sent = list(self._endings)
        self._carries = self._sent_at - self._added_up_at > ADD_UP_SECONDS
        if self._carries:
            self._added_up_at = self._sent_at
        self._read = self.reserver.end(self._sent, self._carried if self._carries else {}, limit)
        return True

    def settle(self) -> None:
        """Wait for the answer to what was sent. An error is logged: what was not written is still held."""
        read, self._read = self._read, None
        if read is None:
            return
        try:
            result = self._forget(self._sent, read())
        except psycopg.Error as error:
            logger.warning("worker %s will write again what it had sent: %s", self.worker_id, str(error).strip())
            self._needs_flush = True
        else:
            if not self._carries:
                result.carry(self._carried)
            self._needs_flush = bool(result.locked)
            self._carried = dict(result.sums)
        self._sent = []

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
                return transitions.flush(connection, self.worker_id, endings, carried=self._carried)
            except psycopg.errors.LockNotAvailable:
                logger.warning("a finished task's row is locked by another session; flushing around it")
        result = transitions.flush(connection, self.worker_id, endings, skip_locked=True, carried=self._carried)
        self._locked = {ending.id for ending in result.locked}
        return result

    def _write_one_by_one(self, connection: psycopg.Connection, endings: list[Ending]) -> Flush:
        """One ending holds what PostgreSQL cannot store: it must not keep the others from being written (F2, F16)."""
        total = transitions.flush(connection, self.worker_id, [], carried=self._carried)
        for ending in endings:
            try:
                part = transitions.flush(connection, self.worker_id, [ending])
            except psycopg.DataError as error:
                part = transitions.flush(connection, self.worker_id, [_unstorable(ending, error)])
            total.completed += part.completed
            total.failed += part.failed
            total.refused += part.refused
        return total

    def _forget(self, endings: list[Ending], result: Flush) -> Flush:
        with self._guard:
            self._endings = result.locked + self._endings[len(endings) :]
            self.page.words[UNWRITTEN] = len(self._endings)
            self._needs_flush = False
        self.page.add(COMPLETED, result.completed)
        self.page.add(FAILED, result.failed)
        self.page.add(REFUSED, len(result.refused))
        return result


def _unstorable(ending: Ending, error: psycopg.DataError) -> Ending:
    failure = Failure("tasks.exceptions.Unstorable", f"PostgreSQL cannot store the outcome: {error}", 60.0)
    return Ending(ending.id, ending.version, ending.attempt, ending.started, ending.finished, failure=failure)
