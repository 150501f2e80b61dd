"""A named lock between machines, kept in PostgreSQL or in Redis with the same meaning.

Explicit locks are the lowest level of coordination: prefer a task of the queue. Use a lock where runs must not overlap
(cron).
"""

import asyncio
import inspect
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from datetime import timedelta
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, cast
from weakref import WeakKeyDictionary

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
GIVE_UP_SECONDS = 0.5  # the longest wait in the server of a coroutine, which may be cancelled
_thread = threading.local()
_coroutines: WeakKeyDictionary["asyncio.Task[Any]", list[int]] = WeakKeyDictionary()


class Lock:
    """The lock `name`, for `with`, `async with`, or as a decorator that takes it around every call.

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

    In a coroutine (`async with`) a thread takes, waits and releases, so that the event loop goes on. A cancelled wait
    ends within GIVE_UP_SECONDS, and a lock that it got nevertheless is released first.
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
        return self._acquire(_fences_here(), None)

    def _acquire(self, siblings: list[int], given_up: threading.Event | None) -> Self:
        """Take the lock for the party that holds the fences `siblings`, unless `given_up` is set before."""
        if self._contender is not None:
            raise RuntimeError(f"This Lock object holds {self.name!r} already: make another one with lock().")
        contender = backends.make(self.backend, self.name, self.ttl)
        try:
            asked_at = self._obtain(contender, _with_inherited(siblings), given_up)
        except BaseException:
            contender.close()
            raise
        self._contender, self.fence, self.owner = contender, contender.fence, contender.owner
        self._renewer = Renewer(contender, asked_at, self.on_lost)
        self._siblings = siblings
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

    async def __aenter__(self) -> Self:
        siblings, given_up, taken = _fences_here(), threading.Event(), threading.Event()

        def take() -> None:
            self._acquire(siblings, given_up)
            taken.set()

        try:
            await _in_thread(take, given_up.set)
        except asyncio.CancelledError:
            if taken.is_set():
                await _in_thread(self.release)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await _in_thread(lambda: self.__exit__(kind, error, at))

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"lock() cannot decorate {function.__qualname__}: a call of it only makes a generator, "
                "and the lock would be let go before the body runs. Use `with lock(…)` inside."
            )

        @wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            with self._another():
                return function(*args, **kwargs)

        @wraps(function)
        async def locked_coroutine(*args: P.args, **kwargs: P.kwargs) -> Any:
            async with self._another():
                return await cast("Any", function(*args, **kwargs))

        return cast("Callable[P, R]", locked_coroutine) if inspect.iscoroutinefunction(function) else locked

    def _another(self) -> "Lock":
        """A lock like this one, for one call."""
        return Lock(self.name, ttl=self.ttl, wait=self.wait, backend=self.backend, on_lost=self.on_lost)

    def _obtain(self, contender: Contender, holds: frozenset[int], given_up: threading.Event | None) -> float:
        """Try, wait for a change and try again until the wait is over; returns when the successful try began."""
        slice_seconds = float("inf") if given_up is None else GIVE_UP_SECONDS
        deadline = time.monotonic() + self.wait
        is_waiting, last_tries = False, 0
        try:
            while True:
                if given_up is not None and given_up.is_set():
                    raise LockHeld(f"The wait for the lock {self.name!r} was cancelled.")
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
                            contender.wait(min(left, slice_seconds))
                        else:  # then try again at once: a release may have come before we subscribed
                            contender.start_waiting(holds)
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
    """Fences of the locks held by this thread or coroutine and by the commands that started this process."""
    return _with_inherited(_fences_here())


def _with_inherited(fences: list[int]) -> frozenset[int]:
    inherited = os.environ.get(HELD_VARIABLE, "").split(",")
    return frozenset([*fences, *(int(fence) for fence in inherited if fence.isdigit())])


def _fences_here() -> list[int]:
    """The fences of this coroutine's locks, or of this thread's: coroutines of one thread may wait for each other."""
    try:
        coroutine = asyncio.current_task()
    except RuntimeError:  # no event loop runs here
        coroutine = None
    if coroutine is not None:
        return _coroutines.setdefault(coroutine, [])
    fences: list[int] = _thread.__dict__.setdefault("fences", [])
    return fences


async def _in_thread(function: Callable[[], R], on_cancel: Callable[[], object] | None = None) -> R:
    """Call the function in a new thread and wait for its end, even when cancelled meanwhile.

    `on_cancel` tells the function to end early. A cancel is raised after that end, in place of the result. The event
    loop's own threads are few: waiters for a lock could occupy them all, and its holder would find none to release it.
    """
    outcome: Future[R] = Future()

    def run() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:  # noqa: BLE001  it is raised where the function is awaited
            outcome.set_exception(error)

    threading.Thread(target=copy_context().run, args=[run], name="lock of a coroutine", daemon=True).start()
    waiting = asyncio.wrap_future(outcome)
    cancel: asyncio.CancelledError | None = None
    while not waiting.done():
        try:
            await asyncio.wait([waiting])
        except asyncio.CancelledError as error:
            cancel = error
            if on_cancel is not None:
                on_cancel()
    if cancel is None:
        return waiting.result()
    waiting.exception()  # read, so that asyncio does not report it as lost
    raise cancel


def _seconds(duration: float | timedelta) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


lock = Lock  # the name in `with lock(…)`
