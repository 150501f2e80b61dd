"""What `run_worker` was asked for, and the allowance of tasks that its children share."""

import mmap
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tasks.claims import DEFAULT_STRATEGY, STRATEGIES

NO_LIMIT = 1 << 62
LOCK_SECONDS = 1.0


@dataclass(frozen=True)
class Options:
    """`queues` None: every queue; `batch_size` and `max_tasks` None: no limit but the strategy's own."""

    queues: list[str] | None = None
    strategy: str = DEFAULT_STRATEGY
    concurrency: int = 1
    batch_size: int | None = None
    burst: bool = False
    max_tasks: int | None = None

    @property
    def largest_batch(self) -> int:
        return min(self.batch_size or NO_LIMIT, STRATEGIES[self.strategy].max_batch)


class Allowance:
    """How many tasks may still be claimed, counted over all children of one supervisor; None: as many as there are."""

    def __init__(self, tasks: int | None) -> None:
        self._is_limited = tasks is not None
        self._left = memoryview(mmap.mmap(-1, 8)).cast("q")
        self._left[0] = tasks or 0
        self._lock = multiprocessing.get_context("fork").Lock()

    def take(self, wanted: int) -> int:
        """As many of `wanted` as are left."""
        if not self._is_limited:
            return wanted
        with self._locked():
            granted = max(0, min(wanted, self._left[0]))
            self._left[0] -= granted
        return granted

    def give_back(self, number: int) -> None:
        if self._is_limited and number:
            with self._locked():
                self._left[0] += number

    @property
    def is_spent(self) -> bool:
        return self._is_limited and self._left[0] <= 0

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # A child that was killed while it held the lock keeps it for ever; the others go on without.
        is_ours = self._lock.acquire(timeout=LOCK_SECONDS)
        try:
            yield
        finally:
            if is_ours:
                self._lock.release()
