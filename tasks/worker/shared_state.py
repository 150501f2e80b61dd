"""What a child shares with its supervisor: a page of memory that outlives the child's death.

The supervisor reads which task runs, since when and until when it may; which rows of the batch have not begun, so
that they can be given back exactly; which have, in case the answer to a claim dies with the child; whether the next
batch is being claimed already; whether the child is busy; and whether it is the lookout. The child reads how fresh its
lease is and whether its batch was taken from it. Both sides change the batch only under the lock.
"""

import mmap
import multiprocessing
import time
from array import array
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from tasks.queue.claim import Claim

BATCH_LIMIT = 2048
(SERIAL, COUNT, POSITION, SINCE_NS, DEADLINE_NS, VOID_SERIAL, BEAT_NS, REGISTERED, CONVICTED, BUSY) = range(10)
CLAIMED, COMPLETED, FAILED, REFUSED, UNWRITTEN = range(10, 15)
EARLIER, LOOKOUT, AHEAD = 15, 16, 17
IDS = 18
ATTEMPTS = IDS + BATCH_LIMIT
CLAIMED_AT_US = ATTEMPTS + BATCH_LIMIT
# What ended in earlier batches and is not written; in one of two places in turn, so that a child that dies while it
# fills the one leaves the other.
EARLIER_LIMIT = 2 * BATCH_LIMIT
EARLIER_IDS = (CLAIMED_AT_US + BATCH_LIMIT, CLAIMED_AT_US + BATCH_LIMIT + EARLIER_LIMIT)
WORDS = CLAIMED_AT_US + BATCH_LIMIT + 2 * EARLIER_LIMIT
NONE = -1
TOO_MANY = -1
UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


class Page:
    """Shared memory of one child; every value is a 64-bit integer, times of this machine are `time.monotonic_ns()`."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, WORDS * 8)
        self.words = memoryview(self._memory).cast("q")
        self.lock = multiprocessing.get_context("fork").Lock()
        self.words[POSITION] = self.words[VOID_SERIAL] = self.words[AHEAD] = NONE

    # The child's side.

    def publish(self, batch: list[Claim], earlier: Collection[int] = ()) -> None:
        """A new batch, in the order in which it will run; `earlier`: ids that have ended and are not written yet."""
        with self.lock:
            self._remember(earlier)
            self.words[COUNT] = 0  # first: what it counted has begun
            self.words[POSITION] = NONE
            self.words[SERIAL] += 1
            self._write(IDS, [claim.id for claim in batch])
            self._write(ATTEMPTS, [claim.attempt for claim in batch])
            distinct = {claim.started_at: claim for claim in batch}  # one of each statement that claimed many
            moments = {at: (claim.claimed_at() - UNIX_EPOCH) // MICROSECOND for at, claim in distinct.items()}
            self._write(CLAIMED_AT_US, [moments[claim.started_at] for claim in batch])
            self.words[COUNT] = len(batch)

    def _remember(self, earlier: Collection[int]) -> None:
        """Before the batch is forgotten in which they began. One word says where they are and how many."""
        place = 1 - self.words[EARLIER] % 2
        if len(earlier) > EARLIER_LIMIT:
            self.words[EARLIER] = TOO_MANY
        else:
            self._write(EARLIER_IDS[place], earlier)
            self.words[EARLIER] = 2 * len(earlier) + place

    def _write(self, start: int, values: Collection[int]) -> None:
        self.words[start : start + len(values)] = memoryview(array("q", values))

    def begin(self, index: int, timeout: float | None) -> bool:
        """Begin the task at `index`; False when the supervisor has taken the rest of this batch back."""
        now = time.monotonic_ns()
        words = self.words
        self.lock.acquire()  # for each task: a third of the time that `with` takes
        try:
            if words[VOID_SERIAL] == words[SERIAL]:
                return False
            words[POSITION] = index
            words[SINCE_NS] = now
            words[DEADLINE_NS] = now + int(timeout * 1e9) if timeout else 0
        finally:
            self.lock.release()
        return True

    def end(self) -> None:
        """The task that ran has ended; its completion may not be written yet."""
        self.words[SINCE_NS] = 0
        self.words[DEADLINE_NS] = 0

    def clear(self) -> None:
        """Nothing of the batch is left to begin."""
        with self.lock:
            self.words[COUNT] = self.words[POSITION] + 1

    def begin_ahead(self) -> None:
        """From now on rows are claimed that are in no list: those of the batch after this one."""
        self.words[AHEAD] = self.words[SERIAL]

    def end_ahead(self) -> bool:
        """No more such rows are claimed. Whether what was claimed may run; False when this batch was taken back."""
        with self.lock:
            self.words[AHEAD] = NONE
            return self.words[VOID_SERIAL] != self.words[SERIAL]

    def is_lease_fresh(self, lease_seconds: float) -> bool:
        """Whether the lease was renewed within this time and the worker not convicted; else no task may begin."""
        return not self.words[CONVICTED] and time.monotonic_ns() - self.words[BEAT_NS] < lease_seconds * 1e9

    def add(self, counter: int, number: int) -> None:
        self.words[counter] += number

    # The supervisor's side.

    def beat(self) -> None:
        """The lease has been renewed just now."""
        self.words[BEAT_NS] = time.monotonic_ns()

    def running(self) -> tuple[int, int, float] | None:
        """(id, attempt, seconds since its start) of the task that runs now, or None."""
        since, position = self.words[SINCE_NS], self.words[POSITION]
        if not since or position == NONE:
            return None
        seconds = (time.monotonic_ns() - since) / 1e9
        return self.words[IDS + position], self.words[ATTEMPTS + position], seconds

    def is_overdue(self) -> bool:
        deadline = self.words[DEADLINE_NS]
        return bool(deadline) and time.monotonic_ns() > deadline

    def has_ahead(self) -> bool:
        """Whether the batch after this one is being claimed, or is claimed and its child does not know yet."""
        return self.words[AHEAD] == self.words[SERIAL]

    def has_unstarted(self) -> bool:
        is_left = self.words[POSITION] + 1 < self.words[COUNT] or self.has_ahead()
        return is_left and self.words[VOID_SERIAL] != self.words[SERIAL]

    def take_unstarted(self) -> list[tuple[int, datetime]]:
        """Take the rows of the batch that have not begun away from the child, each as its id and its time of claim.

        And with them the batch after it, whose rows nobody has a list of (`listed`). Empty when there are none, or when
        the child does not let go of the lock: it is frozen, and the lease decides.
        """
        with self._lock_within(0.2) as locked:
            if not locked or not self.has_unstarted():
                return []
            self.words[VOID_SERIAL] = self.words[SERIAL]
            return self.unstarted()

    def listed(self) -> list[int] | None:
        """The ids of a batch that was taken back, and of earlier ones that are not written.

        Any other row of the child is claimed ahead, if `take_ahead` says so afterwards. None: nothing is claimed ahead
        of a batch that was taken back, or too many have ended to tell.
        """
        if not self._is_ahead_void():
            return None
        with self._lock_within(0.2) as locked:
            earlier = self._earlier()
            if not locked or not self._is_ahead_void() or earlier is None:
                return None
            return [*self.words[IDS : IDS + self.words[COUNT]], *earlier]

    def take_ahead(self) -> bool:
        """Take away what was claimed ahead of the batch after this one; False when the child has seen to it itself."""
        with self._lock_within(0.2) as locked:
            if not locked or not self._is_ahead_void():
                return False
            self.words[AHEAD] = NONE
            return True

    def _is_ahead_void(self) -> bool:
        return self.has_ahead() and self.words[VOID_SERIAL] == self.words[SERIAL]

    def unstarted(self) -> list[tuple[int, datetime]]:
        """The rows after the one that began last; exact once the child is dead."""
        rows = range(self.words[POSITION] + 1, self.words[COUNT])
        return [(self.words[IDS + row], UNIX_EPOCH + self.words[CLAIMED_AT_US + row] * MICROSECOND) for row in rows]

    def begun(self) -> list[int] | None:
        """The ids that have begun and may not be written yet, of this batch and of earlier ones.

        None: too many to tell. Exact once the child is dead: any other row that it holds has not begun, though it may
        be of a claim whose answer nobody has read.
        """
        earlier = self._earlier()
        return None if earlier is None else [*self.words[IDS : IDS + self.words[POSITION] + 1], *earlier]

    def _earlier(self) -> list[int] | None:
        if self.words[EARLIER] == TOO_MANY:
            return None
        count, place = divmod(self.words[EARLIER], 2)
        return list(self.words[EARLIER_IDS[place] : EARLIER_IDS[place] + count])

    @contextmanager
    def _lock_within(self, seconds: float) -> Iterator[bool]:
        locked = self.lock.acquire(timeout=seconds)
        try:
            yield locked
        finally:
            if locked:
                self.lock.release()
