"""A named lock between machines, kept in PostgreSQL or in Redis with the same meaning.

Explicit locks are the lowest level of coordination: prefer a task of the queue. Use a lock where runs must not overlap
(cron).
"""

import inspect
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import wraps
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

from tasks.exceptions import LockHeld, LockLost, LockUnavailable
from tasks.locking.named import backends
from tasks.locking.named.holder import Holder, held_sentence
from tasks.locking.named.renewal import Contender, Renewer
from tasks.support.reading import name_problem

logger = logging.getLogger(__name__)
P = ParamSpec("P")
R = TypeVar("R")

HELD_VARIABLE = "ROWLOCK_HELD_FENCES"  # of the commands that started this process, separated by commas
RELEASED_MEANWHILE_TRIES = 3
RETRY_SECONDS = 0.5
_thread = threading.local()


class Lock:
    """The lock `name`, for `with` or as a decorator that takes it around every call.

    Args:
        ttl: the lease in seconds. It is renewed while the body runs, so it only matters when the holder froze or its
            host vanished. A body that holds the GIL for long needs a longer one.
        wait: how long to wait for the lock, in seconds; None tries once.
        backend: `lease` (a row in PostgreSQL), `advisory`, `redis` or `cache:<alias>`; None: the setting LOCK_BACKEND.
        on_lost: called from another thread, once, when the lock is lost while the body runs.

    Entering gives the Lock with its `fence`, a number that grows each time the lock is taken. Pass it along with each
    write, so that the receiver can refuse a fence older than the last. `is_lost` is up to date at any moment. Raises
    LockHeld (with its `holder`), LockCycle when waiting would never end, LockUnavailable when the server does not
    answer. Raises LockLost at the end if the lock was lost. The lock is not part of a transaction: inside `atomic()` it
    is released before the commit. It may be taken again after its release, but not twice at once.
    """

    def __init__(
        self,
        name: str,
        *,
        ttl: float | timedelta,
        wait: float | timedelta | None = None,
        backend: str | None = None,
        on_lost: Callable[[], object] | None = None,
    ) -> None:
        self.name = name
        self.ttl = _seconds(ttl)
        self.wait = _seconds(wait or 0.0)
        self.backend = backend
        self.on_lost = on_lost
        if not 0 < self.ttl <= 365 * 86400:
            raise ValueError(f"The ttl of a lock is above 0 s and at most a year, not {self.ttl} s.")
        if not self.wait >= 0:
            raise ValueError(f"The wait for a lock is a number of seconds from 0, not {self.wait}: None tries once.")
        if problem := name_problem(name):
            raise ValueError(f"The name of a lock {problem}.")
        self.fence: int | None = None
        self.owner = ""
        self._contender: Contender | None = None
        self._renewer: Renewer | None = None
        self._siblings: list[int] = []

    @property
    def is_lost(self) -> bool:
        """True if the lock was taken and then lost."""
        return self._renewer is not None and self._renewer.is_lost

    @property
    def seconds_left(self) -> float:
        """Seconds for which the lock is certainly ours if no further renewal succeeds."""
        return self._renewer.seconds_left if self._renewer else 0.0

    def check(self) -> None:
        """Raise LockLost if the lock is lost; for a body that works in steps."""
        if self.is_lost:
            raise LockLost(self._lost_sentence())

    def acquire(self) -> Self:
        """Take the lock. Raises LockHeld, LockCycle or LockUnavailable."""
        if self._contender is not None:
            raise RuntimeError(f"This Lock object holds {self.name!r} already: make another one with lock().")
        contender = backends.make(self.backend, self.name, self.ttl)
        try:
            asked_at = self._obtain(contender)
        except BaseException:
            contender.close()
            raise
        self._contender, self.fence, self.owner = contender, contender.fence, contender.owner
        self._renewer = Renewer(contender, asked_at, self.on_lost)
        self._siblings = _fences_of_thread()
        self._siblings.append(contender.fence or 0)
        return self

    def release(self) -> None:
        """Release the lock. Raises LockLost if it was lost before."""
        contender, renewer = self._contender, self._renewer
        if contender is None or renewer is None:
            raise RuntimeError(f"The lock {self.name!r} is not held: it cannot be released.")
        if contender.pid != os.getpid():
            return  # in a fork of the holder: the lock is the parent's
        try:
            renewer.stop()
            self.check()
            self._let_go(contender)
        finally:
            contender.close()
            self._contender = self._renewer = None
            self._siblings.remove(contender.fence or 0)

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.release()
        except LockLost as lost:
            if error is None:
                raise
            error.add_note(str(lost))

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise TypeError(
                f"lock() cannot decorate {function.__qualname__}: a call of it only makes a coroutine or a generator, "
                "and the lock would be let go before the body runs. Use `with lock(…)` inside."
            )

        @wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            with Lock(self.name, ttl=self.ttl, wait=self.wait, backend=self.backend, on_lost=self.on_lost):
                return function(*args, **kwargs)

        return locked

    def _obtain(self, contender: Contender) -> float:
        """Try, wait for a change and try again until the wait is over; returns when the successful try began."""
        deadline = time.monotonic() + self.wait
        is_waiting, last_tries = False, 0
        try:
            while True:
                asked_at = time.monotonic()
                try:
                    with contender.explained():
                        if contender.try_acquire() is not None:
                            return asked_at
                        left = deadline - time.monotonic()
                        if left <= 0:
                            last_tries += 1
                            self._refuse(contender.holder(), is_final=last_tries == RELEASED_MEANWHILE_TRIES)
                        elif is_waiting:
                            contender.wait(left)
                        else:  # then try again at once: a release may have come before we subscribed
                            contender.start_waiting(held_fences())
                            is_waiting = True
                except LockUnavailable:
                    if time.monotonic() + RETRY_SECONDS >= deadline:
                        raise
                    time.sleep(RETRY_SECONDS)
        finally:
            if self.wait:
                with suppress(LockUnavailable), contender.explained():
                    contender.stop_waiting()

    def _refuse(self, holder: Holder | None, *, is_final: bool) -> None:
        """Raise LockHeld, unless the lock has just been released and another try is worth it."""
        if holder or is_final:
            raise LockHeld(held_sentence(self.name, holder), holder)

    def _let_go(self, contender: Contender) -> None:
        left = self.seconds_left
        try:
            with contender.explained():
                is_released = contender.release()
        except LockUnavailable as error:
            logger.warning("lock %r was not released, and is free in %.1f s at the latest: %s", self.name, left, error)
            return
        if not is_released:
            raise LockLost(self._lost_sentence())

    def _lost_sentence(self) -> str:
        return (
            f"The lock {self.name!r} (fence {self.fence}) was lost while it was held: somebody else may have taken it. "
            "Let what the body writes to check the fence, or undo what was done since."
        )


def held_fences() -> frozenset[int]:
    """Fences of the locks held by this thread and by the commands that started this process."""
    inherited = os.environ.get(HELD_VARIABLE, "").split(",")
    return frozenset([*_fences_of_thread(), *(int(fence) for fence in inherited if fence.isdigit())])


def _fences_of_thread() -> list[int]:
    fences: list[int] = _thread.__dict__.setdefault("fences", [])
    return fences


def _seconds(duration: float | timedelta) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


lock = Lock  # the name in `with lock(…)`
