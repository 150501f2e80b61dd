"""The record of a failed attempt: its exception, its place in the project's code, and when the next one is due."""

import logging
from pathlib import PurePath
from sysconfig import get_path
from traceback import walk_tb
from typing import Any

import tasks
from tasks.exceptions import TimedOut
from tasks.framework import declaration, redacted_calls
from tasks.framework.declaration import PostgresTask
from tasks.queue.claim import Claim
from tasks.queue.completion import RELEASED, Failure
from tasks.support.reading import one_line

logger = logging.getLogger(__name__)

LIBRARIES = tuple(f"{path}/" for path in (get_path("stdlib"), get_path("platstdlib"), tasks.__path__[0]))
INSTALLED = {"site-packages", "dist-packages"}
LONGEST_PLACE = 200
CANCELLED = Failure("", "", 0.0, outcome=RELEASED)  # ended before its time, because somebody asked for it


def describe(
    error: BaseException, claim: Claim, task: PostgresTask, args: list[Any], kwargs: dict[str, Any]
) -> Failure:
    """The record of a failed attempt, and when the next one is due."""
    exception_class, traceback = redacted_calls.describe_exception(error, task, args, kwargs)
    may_retry = task.retry_for is None or isinstance(error, task.retry_for)
    seconds = retry_seconds(task, claim.attempt) if may_retry else None
    return Failure(exception_class, traceback, seconds, place=place_of(error))


def place_of(error: BaseException) -> str:
    """The last frame of the project's own code, as `shop/tasks.py:charge_card`; without one, the last frame.

    The path is as long as the module's name, so that it is the same on every host. Without a line number, so that an
    edit elsewhere in the file changes nothing.
    """
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    own = [frame for frame in frames if not is_library(frame.f_code.co_filename)]
    if not frames:
        return ""
    frame = (own or frames)[-1]
    path, module = PurePath(frame.f_code.co_filename), str(frame.f_globals.get("__name__", ""))
    depth = module.count(".") + 1 + (path.stem == "__init__")
    return one_line(f"{'/'.join(path.parts[-depth:])}:{frame.f_code.co_qualname}")[:LONGEST_PLACE]


def is_library(path: str) -> bool:
    """True for Python's own code, installed packages and the queue itself."""
    return path.startswith((*LIBRARIES, "<")) or not INSTALLED.isdisjoint(PurePath(path).parts)


def timed_out(claim_attempt: int, task: PostgresTask, seconds: float) -> Failure:
    """The record of an attempt that its timeout ended after so many seconds."""
    text = f"Ended after {seconds:.1f} s: its timeout is {task.timeout} s."
    name = f"{TimedOut.__module__}.{TimedOut.__qualname__}"
    return Failure(name, text, retry_seconds(task, claim_attempt), outcome="timed_out")


def retry_seconds(task: PostgresTask, attempt: int) -> float:
    """The task's own backoff, or exponential with jitter; a backoff that itself fails does not lose the failure."""
    if task.backoff is None:
        return declaration.exponential(attempt)
    try:
        return max(0.0, float(task.backoff(attempt)))
    except Exception:
        logger.exception("the backoff of %s failed for attempt %s; using the default", task.module_path, attempt)
        return declaration.exponential(attempt)
