"""Memory that a worker process shares with its supervisor; it outlives the process's death.

The supervisor reads which tasks run, since when, and their deadlines; which rows of the batch have begun; and whether
the next batch is being claimed. The worker reads how fresh its lease is, whether its batch was taken back, and which of
its tasks are to end. Both sides change the batch only under the lock.
"""

import ctypes
import mmap
import multiprocessing
import time
from array import array
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from multiprocessing.synchronize import Lock
from typing import ClassVar, NamedTuple, Self

from tasks.queue.claim import Claim, Walks

BATCH_LIMIT = 2048
SLOT_LIMIT = 2304  # tasks that one process runs at once
EARLIER_LIMIT = 2 * BATCH_LIMIT
LOCK_SECONDS = 0.2
CANCEL_SECONDS = 2.0  # within which a coroutine has to end once it was cancelled
ALLOWANCE_LOCK_SECONDS = 1.0
NONE = -1
TOO_MANY = -1
UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


class Running(NamedTuple):
    """A task that runs: its slot, its attempt, the seconds since its start, and those past its timeout (or below 0)."""

    slot: int
    id: int
    attempt: int
    seconds: float
    late_seconds: float


class EarlierIds(ctypes.Structure):
    """Ids that ended in earlier batches and are not written yet; `count` is TOO_MANY when they do not fit."""

    _fields_: ClassVar = [("count", ctypes.c_int64), ("ids", ctypes.c_int64 * EARLIER_LIMIT)]


SLOT_FIELDS = ("slot_ids", "slot_attempts", "slot_since_ns", "slot_deadline_ns", "slot_cancel", "slot_closed")


class SharedState(ctypes.Structure):
    """One worker process's shared memory. Each number has 64 aligned bits; `_ns` means `time.monotonic_ns()`.

    Fields:
        batch_number, batch_count: the current batch and its number of rows.
        cleared: the number of the batch of which nothing is left to begin, or NONE.
        progress_ns: when a batch was published or a task began, the last time.
        pulse_ns: when a worker with several slots last looked after its tasks.
        has_room: whether a worker that runs tasks can take more.
        taken_back: the number of the batch that the supervisor took back, or NONE.
        ahead_of: the number of the batch while the next one is being claimed, or NONE.
        lease_renewed_ns, convicted, registered: the worker's lease and row.
        busy, is_leader: whether it works, and whether it leads its supervisor's idle workers.
        has_left_duty: whether a leader left the duty (see leader.py) and nobody has taken it since.
        claimed, completed, failed, refused, unwritten: counters for the report.
        ids, attempts, claimed_at_us, has_begun: the rows of the batch.
        slot_ids, slot_attempts, slot_since_ns, slot_deadline_ns: the task in each slot; `since` is 0 if none runs.
        slot_cancel, slot_closed: ids that the supervisor wrote there: to be cancelled, and closed on their row.
        earlier, earlier_index: two lists of ids in turn, and which one is valid. A worker may die filling one.
    """

    __slots__ = ("_attempts", "_begun", "_ids", "_slots", "lock", "size")
    _fields_: ClassVar = [
        *((name, ctypes.c_int64) for name in (
            "batch_number", "batch_count", "cleared", "progress_ns", "pulse_ns", "has_room", "taken_back", "ahead_of",
            "lease_renewed_ns", "convicted", "registered", "busy", "is_leader", "has_left_duty",
            "claimed", "completed", "failed", "refused", "unwritten", "earlier_index",
        )),
        ("ids", ctypes.c_int64 * BATCH_LIMIT),
        ("attempts", ctypes.c_int64 * BATCH_LIMIT),
        ("claimed_at_us", ctypes.c_int64 * BATCH_LIMIT),
        *((name, ctypes.c_int64 * SLOT_LIMIT) for name in SLOT_FIELDS),
        ("has_begun", ctypes.c_uint8 * BATCH_LIMIT),
        ("earlier", EarlierIds * 2),
    ]  # fmt: skip

    def __new__(cls, size: int = 1) -> Self:
        """Lay the fields over anonymous memory that a fork shares."""
        return cls.from_buffer(mmap.mmap(-1, ctypes.sizeof(cls)))

    def __init__(self, size: int = 1) -> None:
        """`size`: the number of slots, one for each task that runs at once."""
        self.size = size
        self.lock = multiprocessing.get_context("fork").Lock()
        self.cleared = self.taken_back = self.ahead_of = NONE
        self.earlier_index = 0
        # An item of a view is written in a third of the time that an item of a field takes.
        self._begun = memoryview(self.has_begun).cast("B")
        self._ids = memoryview(self.ids).cast("B").cast("q")
        self._attempts = memoryview(self.attempts).cast("B").cast("q")
        self._slots = [memoryview(getattr(self, name)).cast("B").cast("q") for name in SLOT_FIELDS]

    # The worker's side.

    def publish(self, batch: list[Claim], earlier: Collection[int] = (), *, has_carried: bool = False) -> bool:
        """Note a new batch in the order in which it will run; `earlier`: ids that have begun and are not written.

        `has_carried`: it holds rows of the batch before. False, and nothing is noted, if that was taken back meanwhile.
        """
        with self.lock:
            if has_carried and self.taken_back == self.batch_number:
                return False
            self._remember(earlier)
            self.batch_count = 0  # first: the rows of the batch before have begun, or come again
            self._begun[: len(batch)] = bytes(len(batch))
            self.batch_number += 1
            self._write(self.ids, [claim.id for claim in batch])
            self._write(self.attempts, [claim.attempt for claim in batch])
            distinct = {claim.started_at: claim for claim in batch}  # one of each statement that claimed many
            moments = {at: (claim.claimed_at() - UNIX_EPOCH) // MICROSECOND for at, claim in distinct.items()}
            self._write(self.claimed_at_us, [moments[claim.started_at] for claim in batch])
            self.progress_ns = time.monotonic_ns()
            self.batch_count = len(batch)
        return True

    def _remember(self, earlier: Collection[int]) -> None:
        """Fill the list that is not valid, then make it the valid one, before the batch of these ids is forgotten."""
        index = 1 - self.earlier_index
        spare = self.earlier[index]
        spare.count = len(earlier) if len(earlier) <= EARLIER_LIMIT else TOO_MANY
        if spare.count != TOO_MANY:
            self._write(spare.ids, earlier)
        self.earlier_index = index

    @staticmethod
    def _write(target: "ctypes.Array[ctypes.c_int64]", values: Collection[int]) -> None:
        source = memoryview(array("q", values)).cast("B")
        memoryview(target).cast("B")[: len(source)] = source

    def begin(self, index: int, timeout: float | None, slot: int = 0) -> bool:
        """Begin the task at `index`; False when the supervisor has taken the rest of this batch back."""
        now = time.monotonic_ns()
        ids, attempts, since, deadlines, cancels, _ = self._slots
        self.lock.acquire()  # for each task: a third of the time that `with` takes
        try:
            if self.taken_back == self.batch_number:
                return False
            self._begun[index] = 1
            ids[slot] = self._ids[index]
            attempts[slot] = self._attempts[index]
            cancels[slot] = 0
            deadlines[slot] = now + int(timeout * 1e9) if timeout else 0
            since[slot] = self.progress_ns = now  # last: the supervisor reads without the lock
        finally:
            self.lock.release()
        return True

    def end(self, slot: int = 0) -> None:
        """Note that the task in the slot has ended; its completion may not be written yet."""
        self._slots[2][slot] = 0

    def clear(self) -> None:
        """Note that nothing of the batch is left to begin."""
        with self.lock:
            self.cleared = self.batch_number

    def beat(self) -> None:
        """Show the supervisor that Python runs here: no task keeps the interpreter to itself."""
        self.pulse_ns = time.monotonic_ns()

    def to_cancel(self) -> list[tuple[int, int]]:
        """Slots whose task the supervisor wants cancelled, each with the task's id."""
        ids, cancels = self._slots[0], self._slots[4]
        return [(slot, ids[slot]) for slot in range(self.size) if cancels[slot] and cancels[slot] == ids[slot]]

    def closed_slots(self) -> list[int]:
        """Slots whose task runs on although the supervisor has closed its attempt on the row."""
        ids, _, since, _, _, closed = self._slots
        return [slot for slot in range(self.size) if closed[slot] and closed[slot] == ids[slot] and since[slot]]

    def has_closed(self) -> bool:
        """True once the supervisor has closed an attempt that this process was running: another takes its place."""
        return any(self._slots[5][: self.size].tolist())

    def begin_ahead(self) -> None:
        """Note that rows of the next batch, which are in no list, are claimed from now on."""
        self.ahead_of = self.batch_number

    def end_ahead(self) -> bool:
        """End claiming ahead. True if what was claimed may run; False when this batch was taken back."""
        with self.lock:
            self.ahead_of = NONE
            return bool(self.taken_back != self.batch_number)

    def is_lease_fresh(self, lease_seconds: float) -> bool:
        """True if the lease was renewed within this time and nobody convicted the worker; else no task may begin."""
        return not self.convicted and time.monotonic_ns() - self.lease_renewed_ns < lease_seconds * 1e9

    # The supervisor's side.

    def renew_lease(self) -> None:
        self.lease_renewed_ns = time.monotonic_ns()

    def running(self) -> list[Running]:
        """The tasks that run now."""
        ids, attempts, since, deadlines, _, _ = self._slots
        now = time.monotonic_ns()
        tasks = []
        for slot, began in enumerate(since[: self.size].tolist()):
            if not began:
                continue
            late = (now - deadlines[slot]) / 1e9 if deadlines[slot] else NONE
            task = Running(slot, ids[slot], attempts[slot], (now - began) / 1e9, late)
            if since[slot] == began:  # else another task has begun there meanwhile
                tasks.append(task)
        return tasks

    def is_slow(self, seconds: float) -> bool:
        """True if tasks run and none has begun for so long."""
        is_running = any(self._slots[2][: self.size].tolist())
        return is_running and time.monotonic_ns() - self.progress_ns > seconds * 1e9

    def cancel(self, task: Running) -> None:
        """Ask the worker to cancel a coroutine."""
        self._slots[4][task.slot] = task.id

    def close(self, task: Running) -> None:
        """Note that this attempt is closed on its row: the worker need not wait for it."""
        self._slots[5][task.slot] = task.id

    def has_ahead(self) -> bool:
        """True if the next batch is being claimed, or is claimed and its worker has not read it yet."""
        return bool(self.ahead_of == self.batch_number)

    def take_unstarted(self) -> list[tuple[int, datetime]]:
        """Take the rows that have not begun away from the worker, each as its id and its time of claim.

        The next batch goes with them; nobody has a list of its rows (see `listed`). Empty when there are none, or when
        a frozen worker holds the lock: then its lease decides.
        """
        with locked_within(self.lock, LOCK_SECONDS) as is_ours:
            unstarted = self.unstarted()
            if not is_ours or not (unstarted or self.has_ahead()) or self.taken_back == self.batch_number:
                return []
            self.taken_back = self.batch_number
            return unstarted

    def listed(self) -> list[int] | None:
        """The ids of a batch that was taken back, and of earlier ones that are not written.

        Any other row of the worker is claimed ahead, if `take_ahead` says so afterwards. None: nothing is claimed ahead
        of a batch that was taken back, or too many have ended to list them.
        """
        if not self._is_ahead_taken_back():
            return None
        with locked_within(self.lock, LOCK_SECONDS) as is_ours:
            earlier = self._earlier()
            if not is_ours or not self._is_ahead_taken_back() or earlier is None:
                return None
            return [*self.ids[: self.batch_count], *earlier]

    def take_ahead(self) -> bool:
        """Take away what was claimed ahead of a batch that was taken back; False when the worker did so itself."""
        with locked_within(self.lock, LOCK_SECONDS) as is_ours:
            if not is_ours or not self._is_ahead_taken_back():
                return False
            self.ahead_of = NONE
            return True

    def _is_ahead_taken_back(self) -> bool:
        return self.has_ahead() and self.taken_back == self.batch_number

    def unstarted(self) -> list[tuple[int, datetime]]:
        """The rows that have not begun; exact once the worker is dead."""
        return [(self.ids[row], UNIX_EPOCH + self.claimed_at_us[row] * MICROSECOND) for row in self._unbegun()]

    def held(self) -> list[int]:
        """The ids that run or have not begun."""
        return [*(task.id for task in self.running()), *(self.ids[row] for row in self._unbegun())]

    def _unbegun(self) -> list[int]:
        """The places in the batch that have not begun."""
        if self.cleared == self.batch_number:
            return []
        return [row for row, begun in enumerate(self._begun[: self.batch_count].tolist()) if not begun]

    def begun(self) -> list[int] | None:
        """The ids that have begun and may not be written yet, of this batch and of earlier ones.

        None: too many to list. Exact once the worker is dead: any other row that it holds has not begun, though nobody
        may have read the answer to its claim.
        """
        earlier = self._earlier()
        rows = zip(self.ids[: self.batch_count], self._begun[: self.batch_count].tolist(), strict=True)
        return None if earlier is None else [*(id for id, begun in rows if begun), *earlier]

    def _earlier(self) -> list[int] | None:
        valid = self.earlier[self.earlier_index]
        return None if valid.count == TOO_MANY else valid.ids[: valid.count]


class Allowance:
    """Limits to the claims of all children of one supervisor.

    `tasks`: how many in all; None: as many as there are.
    """

    def __init__(self, tasks: int | None) -> None:
        self.walks = Walks.from_buffer(mmap.mmap(-1, ctypes.sizeof(Walks)))
        self._is_limited = tasks is not None
        self._left = ctypes.c_int64.from_buffer(mmap.mmap(-1, 8))
        self._left.value = tasks or 0
        # A process that was killed while it held the lock keeps it for ever; the others go on without.
        self._lock = multiprocessing.get_context("fork").Lock()

    def take(self, wanted: int) -> int:
        """As many of `wanted` as are left."""
        if not self._is_limited:
            return wanted
        with locked_within(self._lock, ALLOWANCE_LOCK_SECONDS):
            granted = max(0, min(wanted, self._left.value))
            self._left.value -= granted
        return granted

    def give_back(self, number: int) -> None:
        if self._is_limited and number:
            with locked_within(self._lock, ALLOWANCE_LOCK_SECONDS):
                self._left.value += number

    @property
    def is_spent(self) -> bool:
        return self._is_limited and self._left.value <= 0


@contextmanager
def locked_within(lock: Lock, seconds: float) -> Iterator[bool]:
    """Run the block after at most so many seconds; True if the lock is ours then."""
    is_ours = lock.acquire(timeout=seconds)
    try:
        yield is_ours
    finally:
        if is_ours:
            lock.release()
