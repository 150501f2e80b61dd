"""Progress and log lines of a running handler: `TaskContext` for tasks that take it, and a log handler for all.

Telling never waits: a report stays in memory until the worker's other thread writes it, see `tasks/queue/reports.py`.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tasks import compat
from tasks.framework import arguments, payload
from tasks.support import tracing

MOST_LINES = 200  # of an attempt
LONGEST_LINE = 2000  # bytes
LONGEST_RAW = 20_000  # characters of a line before it is redacted
LONGEST_MESSAGE = 500  # characters
SHORT_SECONDS = 1.0  # tasks that end within it keep no line below WARNING, unless they declare `log_level`


class Line(NamedTuple):
    """One logged line. `at` is `time.monotonic()`: only the database's clock is stored."""

    at: float
    level: str
    number: int  # of the level
    text: str


@dataclass(eq=False)
class Report:
    """Progress, checkpoint and log lines of one attempt. The handler changes it, the worker's other thread reads it.

    `log_level` is the declared one; `redact` removes the secrets of its arguments from a text.
    """

    task_id: int
    attempt: int
    log_level: int | None
    redact: Callable[[str], str]
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None
    has_failed: bool = False
    told: tuple[float, str] | None = None  # fraction and message
    first: tuple[float, float] | None = None  # the first fraction, and when
    state: str | None = None  # JSON text
    lines: deque[Line] = field(default_factory=lambda: deque(maxlen=MOST_LINES))
    is_changed: bool = False
    is_watched: bool = False  # the handler asks whether it is cancelled
    is_cancelled: bool = False
    has_heard: bool = False  # the handler was told that it is cancelled

    @property
    def has_news(self) -> bool:
        """True if something is to be written; lines that a short task withholds count too."""
        return self.is_changed or bool(self.lines)

    def log(self, record: logging.LogRecord, text: str) -> None:
        if record.levelno >= (logging.INFO if self.log_level is None else self.log_level):
            self.lines.append(Line(time.monotonic(), record.levelname, record.levelno, text[:LONGEST_RAW]))

    def may_keep(self, line: Line) -> bool:
        """True if a line of this level is stored: a short task that succeeds stores only warnings and worse."""
        if self.log_level is not None or self.has_failed or line.number >= logging.WARNING:
            return True
        return (self.ended or time.monotonic()) - self.started >= SHORT_SECONDS


@dataclass(slots=True, eq=False)
class Attempt(tracing.Running):
    """An attempt that can tell something while its handler is at work."""

    is_at_work: bool = field(default=False, init=False)

    def report(self) -> Report:
        """Return the report of this attempt; it is made when it first tells something."""
        raise NotImplementedError


def current() -> Attempt | None:
    """The attempt whose handler this thread or coroutine runs."""
    running = tracing.RUNNING.get()
    return running if isinstance(running, Attempt) and running.is_at_work else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext(compat.TaskContext):  # type: ignore[misc]  # frozen too, which the stubs do not say
    """The context of a running task, for tasks declared with `takes_context=True`.

    Beside the framework's `task_result` and `attempt`: reports, checkpoints, and whether to stop.
    """

    own: Report
    state: Any = None  # the last checkpoint of an earlier attempt, or None

    def report(self, fraction: float, message: str = "") -> None:
        """Say how far the task is, from 0 to 1. It is written within a second or so; only the last one counts.

        Raises ValueError for any other number.
        """
        if not isinstance(fraction, int | float) or not math.isfinite(fraction) or not 0 <= fraction <= 1:
            raise ValueError(
                f"report() takes a fraction from 0 to 1, not {fraction!r}: divide what is done by the total."
            )
        if self.own.first is None:
            self.own.first = (float(fraction), time.monotonic())
        self.own.told = (float(fraction), str(message)[:LONGEST_MESSAGE])
        self.own.is_changed = True

    def checkpoint(self, state: Any) -> None:
        """Keep a JSON value for the next attempt, which finds it as `context.state`.

        It is written within a second or so, and before the task's end. Raises TypeError or InvalidArguments for what
        is not JSON.
        """
        text = arguments.encode_return_value(state, "checkpoint")
        self.own.state = payload.sealed(text) if payload.seals(self.task_result.task) else text
        self.own.is_changed = True

    def is_cancelled(self) -> bool:
        """True once somebody has asked to cancel the task, or a worker has taken it back: return soon.

        The attempt is not completed then, whatever the handler returns. The first call may come too early to know; the
        answer is at most a second or so old.
        """
        self.own.is_watched = True
        self.own.has_heard = self.own.is_cancelled
        return self.own.has_heard


class AttemptLogHandler(logging.Handler):
    """Keeps what running handlers log with their attempts."""

    def emit(self, record: logging.LogRecord) -> None:
        attempt = current()
        if attempt is None:
            return
        try:
            attempt.report().log(record, self.format(record))
        except Exception:  # noqa: BLE001  logging's own way with a line that cannot be formatted
            self.handleError(record)


def capture_logs() -> None:
    """Keep INFO lines of handlers from now on, and print no more of them than before."""
    root = logging.getLogger()
    if root.level > logging.INFO:
        level = root.level
        for handler in root.handlers:
            handler.setLevel(max(handler.level, level))
        root.setLevel(logging.INFO)
    root.addHandler(AttemptLogHandler())
