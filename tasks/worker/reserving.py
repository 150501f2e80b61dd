"""The batches of a busy worker: while one runs, the server writes how the last one ended and reserves the next one.

Two sessions beside the worker's first one take turns, each with one batch (see `tasks.reservation` for what makes that
safe). Only where tasks end within a moment: what is reserved looks READY to everybody, and nobody else can begin it.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from tasks import reservation
from tasks.claimer import KEYS_PER_STRIDE, Claim, Claimer
from tasks.database import connect_directly
from tasks.flush import Ending, Flush
from tasks.sending import EndedBatch, ReservingSession, write_note
from tasks.shortcut import MANY, Shortcut
from tasks.throughput import SumsByQueue
from tasks.worker.page import RESERVED, Page

logger = logging.getLogger(__name__)
# A batch is to take no longer, or it is claimed as any other.
BATCH_SECONDS = 0.025
# One that takes longer all the same becomes an ordinary claim.
LONGEST_SECONDS = 0.05
# The server itself ends a session that stands still for so long: of a frozen process, a lost host, a handler in C.
STANDSTILL = "SET idle_in_transaction_session_timeout = '500ms'"
WALK_SECONDS = 0.1  # the line is walked from its beginning no more rarely
SETTLE_SECONDS, SETTLE_POLL_SECONDS = 1.0, 0.005
ALONE_SECONDS = 5.0  # after sessions were refused, or tasks stood too far apart, nothing is reserved any sooner


@dataclass(frozen=True)
class Following:
    """A reservation that is to be made, and what it takes."""

    sql: str
    params: dict[str, Any]


class Slot:
    """One session, which holds the locks of one batch: a transaction is open from its reservation to its end."""

    def __init__(self, worker_id: str, number: int) -> None:
        self.worker_id = worker_id
        self.number = number
        self.session: ReservingSession | None = None
        self.batch: list[Claim] = []
        self.transaction = ""  # which holds it
        self.limit = 0  # how many were asked for
        self.since = 0.0  # by `time.monotonic()`
        self._read: Callable[[], tuple[Flush, list[Claim], str]] | None = None

    @property
    def is_full(self) -> bool:
        """Whether there were as many as were asked for: there may be more."""
        return 0 < self.limit == len(self.batch)

    def reserve(self, following: Following) -> None:
        """Begin with a batch. Raises psycopg.Error when there is no connection to be had."""
        if self.session is None or self.session.connection.closed:
            connection = connect_directly(f"rowlock:worker:{self.worker_id}")
            connection.execute(STANDSTILL)
            self.session = ReservingSession(connection)
        self._send(None, following)

    def end(self, endings: Sequence[Ending], carried: SumsByQueue, following: Following | None) -> None:
        """Write how the batch ended, and reserve another one if there is to be one."""
        ended = EndedBatch(self.worker_id, self.number, self.batch[0].started_at, endings, carried)
        self._send(ended, following)

    def _send(self, ended: EndedBatch | None, following: Following | None) -> None:
        assert self.session is not None
        sql, params = (following.sql, following.params) if following else ("", None)
        self.batch = []
        self.limit = params["limit"] if params else 0
        self.since = time.monotonic()
        self._read = self.session.send(ended, sql, params)

    def read(self) -> Flush:
        """What became of the batch before; then `batch` is there. On a psycopg.Error the session is closed."""
        read, self._read = self._read, None
        if read is None:
            return Flush()
        try:
            ended, self.batch, self.transaction = read()
        except psycopg.Error:
            self.close()
            raise
        return ended

    def close(self) -> None:
        """Let go of what is reserved; an answer that is under way is read by nobody."""
        if self.session is not None:
            self.session.connection.close()
        self.session = self._read = None
        self.batch = []


class Reserver:
    """Both slots of one worker. Used under the lock of the worker's first session, on which notes are written."""

    def __init__(self, worker_id: str, claimer: Claimer, page: Page) -> None:
        self.worker_id = worker_id
        self.claimer = claimer
        self.page = page
        self.is_unsure = False  # notes may be there that are to be settled
        self._slots = (Slot(worker_id, 1), Slot(worker_id, 2))
        self._current: Slot | None = None
        self._queue: deque[Slot] = deque()  # what comes next, in this order
        self._walk_at = 0.0  # by `time.monotonic()`: when the line is to be walked from its beginning
        self._begun: set[int] = set()  # what is to be claimed and is not yet
        self._alone_until = 0.0

    @property
    def is_running(self) -> bool:
        """Whether the batch in hand is a reserved one."""
        return self._current is not None

    @property
    def limit(self) -> int:
        """How many tasks the batch in hand was to have."""
        return self._current.limit if self._current else 0

    def number_before(self, endings: Sequence[Ending]) -> int:
        """How many of these, in the order in which they ended, are not of the batch in hand."""
        batch = self._current.batch if self._current else []
        if len(endings) == len(batch) and endings[0].id == batch[0].id:
            return 0
        ids = {claim.id for claim in batch}
        return sum(ending.id not in ids for ending in endings)

    def prepare(self, limit: int) -> None:
        """Let the server reserve up to `limit` tasks behind the batch in hand, unless it does so already."""
        if self._queue or self.is_unsure or limit < MANY or time.monotonic() < self._alone_until:
            return
        following = self._first(limit) if self._current is None else self._behind(self._current, limit)
        if following is None:
            return
        slot = self._slots[1] if self._current is self._slots[0] else self._slots[0]
        try:
            slot.reserve(following)
        except psycopg.Error as error:
            logger.warning("worker %s goes on with one session: %s", self.worker_id, str(error).strip())
            slot.close()
            self._alone_until = time.monotonic() + ALONE_SECONDS
        else:
            self._queue.append(slot)

    def _first(self, limit: int) -> Following | None:
        """Behind the last ordinary claim, where that has left a way past dead rows: then the line is long."""
        shortcut, self.claimer.shortcut = self.claimer.shortcut, None
        if shortcut is None or not shortcut.is_open:
            return None
        self._walk_at = time.monotonic() + WALK_SECONDS
        return Following(reservation.RESERVE_FOLLOWING, shortcut.params(self.worker_id, limit))

    def _behind(self, slot: Slot, limit: int) -> Following | None:
        """Behind this batch; now and then from the beginning of the line, where something may have come in.

        Nothing when the batch was not full.
        """
        if not slot.is_full or limit < MANY:
            return None
        if time.monotonic() >= self._walk_at:
            self._walk_at = time.monotonic() + WALK_SECONDS
            walk = {"queues": self.claimer.queues, "cursor": "", "keys": KEYS_PER_STRIDE, "limit": limit}
            return Following(reservation.RESERVE_FIRST, walk)
        last = slot.batch[-1]
        behind = Shortcut(last.queue_name, last.priority, last.run_after, last.id, 0.0)
        return Following(reservation.RESERVE_FOLLOWING, behind.params(self.worker_id, limit))

    def end(self, endings: Sequence[Ending], carried: SumsByQueue, limit: int) -> Callable[[], Flush]:
        """Send how the batch in hand ended, and reserve up to `limit` behind the next one, if there is more.

        Call what it gives back to read the answer; psycopg.Error is raised by the reading alone.
        """
        assert self._current is not None
        slot, self._current = self._current, None
        following = self._behind(self._queue[-1], limit) if self._queue else None
        slot.end(endings, carried, following)
        if following:
            self._queue.append(slot)
        return lambda: self._read(slot)

    def read(self) -> None:
        """Wait until it is known what was reserved."""
        try:
            for slot in self._queue:
                self._read(slot)
        except psycopg.Error as error:
            logger.warning("worker %s has lost what it had reserved: %s", self.worker_id, str(error).strip())

    def _read(self, slot: Slot) -> Flush:
        try:
            return slot.read()
        except psycopg.Error:
            self.is_unsure = True
            raise

    def take(self, connection: psycopg.Connection) -> list[Claim]:
        """The next batch, noted and to be run; empty when there is none. Raises psycopg.Error of `connection`."""
        slot = self._queue.popleft() if self._queue and not self.is_unsure else None
        if slot is None:
            return []
        if not slot.batch:
            slot.close()
            return []
        if not reservation.can_note(slot.batch):  # as of one queue of many
            slot.close()
            self._alone_until = time.monotonic() + ALONE_SECONDS
            return []
        self.page.words[RESERVED] = 1
        self.is_unsure = True
        note = reservation.noting(self.worker_id, slot.number, slot.batch)
        if not write_note(connection, note, slot.transaction):
            return []
        self.is_unsure = False
        self._current, slot.since = slot, time.monotonic()
        return slot.batch

    def is_due(self) -> bool:
        """Whether the batch in hand lasts, or an ordinary one before it: no lock alone is to hold a row any longer."""
        first = self._current or (self._queue[0] if self._queue else None)
        return first is not None and time.monotonic() - first.since >= LONGEST_SECONDS

    def claim(self, connection: psycopg.Connection, ended: Collection[int]) -> None:
        """Make an ordinary claim of the batch in hand and of what has `ended` and is not written; let go of the next.

        Raises psycopg.Error: then it is to be called again, and nothing of this worker may be written before.
        """
        if self._current is None and not self._queue and not self.is_unsure:
            return
        self.is_unsure = True
        self._begun |= {claim.id for claim in self._current.batch} if self._current else set()
        for slot in self._slots:
            slot.close()
        self._current = None
        self._queue.clear()
        self.claimer.shortcut = None  # what was let go stands before it
        # The server needs a moment to notice that our sessions are closed.
        deadline = time.monotonic() + SETTLE_SECONDS
        while not reservation.settle(connection, [self.worker_id], {*ended, *self._begun}):
            if time.monotonic() > deadline:
                raise psycopg.errors.LockNotAvailable("what this worker has reserved is locked by another session")
            time.sleep(SETTLE_POLL_SECONDS)
        self.is_unsure = False
        self._begun = set()
        self.page.words[RESERVED] = 0

    def rest(self, connection: psycopg.Connection) -> None:
        """There is nothing to do: close both sessions, and leave no note."""
        if self.is_unsure or all(slot.session is None for slot in self._slots):
            return
        for slot in self._slots:
            slot.close()
        connection.execute(reservation.FORGET, {"worker_id": self.worker_id})
