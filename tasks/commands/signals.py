"""TERM and INT for commands: the first signal lets the current item finish, the second ends the command at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

HANDLED = (signal.SIGTERM, signal.SIGINT)


class Interrupted(KeyboardInterrupt):
    """A signal ends the command. As a KeyboardInterrupt it also makes psycopg cancel the running statement."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Signals:
    """While entered, TERM and INT raise Interrupted; inside `finishing_item` the first one is only recorded."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._shielded = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._receive) for number in HANDLED}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def finishing_item(self) -> Iterator[None]:
        """The body checks `received` between its items and stops by itself."""
        self._shielded = True
        try:
            yield
        finally:
            self._shielded = False

    def _receive(self, number: int, frame: FrameType | None) -> None:
        is_first = self.received is None
        self.received = number
        if not (is_first and self._shielded):
            raise Interrupted(number)
