"""The threads in which coroutines use Django's ORM, whose asynchronous methods call synchronous ones in a thread.

By default one thread would do this for all coroutines of a process, and one query that waits for a lock would hold up
all of them. A thread for each coroutine would open as many connections. So a few threads share the coroutines; those of
one coroutine always come to the same thread, and so to the same connections.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, ContextVar
from typing import Any, Protocol

import psycopg
from asgiref.sync import ThreadSensitiveContext
from django.db.backends.base.base import BaseDatabaseWrapper

from tasks.worker import connections

logger = logging.getLogger(__name__)

REFRESH_SECONDS = 0.1  # between two looks at the connections
CANCEL_SECONDS = 2.0


class Caller(Protocol):
    """The task whose coroutine runs."""

    is_relaxed: bool


CURRENT: ContextVar[Caller | None] = ContextVar("current", default=None)


class OrmThread(ThreadPoolExecutor):
    """One thread with its connections. No call may leave a transaction to the next one, which may be another task's."""

    def __init__(self, name: str) -> None:
        super().__init__(max_workers=1, thread_name_prefix=name, initializer=self._begin)
        self._connections: list[BaseDatabaseWrapper] = []
        self._caller: Caller | None = None
        self._caller_lock = threading.Lock()
        self._refresh_at = 0.0
        self.context = Context()

    def enter(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make the context whose coroutines use this thread; entering it for each one took a fifth of their time."""
        entering = ThreadSensitiveContext(executor=self).__aenter__()
        loop.run_until_complete(loop.create_task(entering, context=self.context))

    def _begin(self) -> None:
        self._connections = connections.watch()

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Run one call of the current coroutine; it fails if it leaves a transaction open."""
        return super().submit(self._call, CURRENT.get(), call, args, kwargs)

    def _call(self, caller: Caller | None, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if time.monotonic() >= self._refresh_at:
            connections.refresh()
            self._refresh_at = time.monotonic() + REFRESH_SECONDS
        connections.relax(caller is not None and caller.is_relaxed)
        self._note_caller(caller)
        try:
            value = call(*args, **kwargs)
            connections.leave_no_transaction_open()
        except BaseException:
            connections.clean_up()
            raise
        finally:
            self._note_caller(None)
        return value

    def _note_caller(self, caller: Caller | None) -> None:
        with self._caller_lock:  # while a query is being cancelled, the next one must not begin
            self._caller = caller

    def cancel_query(self, caller: Caller) -> None:
        """Cancel the query that runs for this coroutine, if one does."""
        with self._caller_lock:
            if self._caller is not caller:
                return
            for used in tuple(self._connections):
                try:
                    if used.connection is not None:
                        used.connection.cancel_safe(timeout=CANCEL_SECONDS)
                except psycopg.Error as error:
                    logger.warning("a query of a cancelled task goes on: %s", str(error).strip())
