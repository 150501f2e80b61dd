"""What `run_worker` was asked for, and the allowance of tasks that its children share."""

import multiprocessing
from dataclasses import dataclass

from tasks.claims import DEFAULT_STRATEGY, STRATEGIES

UNLIMITED = 1 << 62


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
        return min(self.batch_size or UNLIMITED, STRATEGIES[self.strategy].max_batch)


class Allowance:
    """How many tasks may still be claimed, counted over all children of one supervisor."""

    def __init__(self, tasks: int | None) -> None:
        self._left = multiprocessing.get_context("fork").Value("q", UNLIMITED if tasks is None else tasks)

    def take(self, wanted: int) -> int:
        with self._left.get_lock():
            granted = max(0, min(wanted, self._left.value))
            self._left.value -= granted
            return granted

    def give_back(self, number: int) -> None:
        with self._left.get_lock():
            self._left.value += number

    @property
    def is_spent(self) -> bool:
        return self._left.value <= 0
