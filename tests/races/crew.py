"""Several sessions at once: threads that start together, each on a connection of its own."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import TypeVar

import psycopg

from tasks.support.database import connect_directly

T = TypeVar("T")


@contextmanager
def worker_sessions(number: int) -> Iterator[list[psycopg.Connection]]:
    """So many connections as workers make them: in autocommit, and none waits for a lock longer than a second."""
    with ExitStack() as stack:
        yield [stack.enter_context(closing(connect_directly("rowlock:test"))) for _ in range(number)]


def at_once(*works: Callable[[], T]) -> list[T]:
    """Call all of them at one moment, each in its thread; what they gave, or the first error."""
    barrier = threading.Barrier(len(works))

    def start(work: Callable[[], T]) -> T:
        barrier.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(start, works))


def again_and_again(work: Callable[[], object], seconds: float) -> Callable[[], int]:
    """Work that is repeated for so long; gives how often."""

    def repeat() -> int:
        deadline, times = time.monotonic() + seconds, 0
        while time.monotonic() < deadline:
            work()
            times += 1
        return times

    return repeat


def until(over: threading.Event, work: Callable[[], object]) -> Callable[[], None]:
    """Work that is repeated until something else is over, once at least."""

    def repeat() -> None:
        work()
        while not over.is_set():
            work()

    return repeat
