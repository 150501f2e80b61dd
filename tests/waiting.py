"""Wait for a condition instead of sleeping."""

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def wait_until(condition: Callable[[], Value], *, seconds: float = 30, every: float = 0.02) -> Value:
    """Return the first true value of `condition`; fail the test if it stays false.

    Args:
        condition: called repeatedly; name it well, because the failure quotes it.
        seconds: the longest wait.
        every: pause between two calls, in seconds.
    """
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, (
            f"{getattr(condition, '__qualname__', condition)} stayed false for {seconds} s"
        )
        time.sleep(every)
    return value
