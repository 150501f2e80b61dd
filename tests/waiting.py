"""Waiting for something to become true, instead of sleeping for luck."""

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def wait_until(condition: Callable[[], Value], *, seconds: float = 30, every: float = 0.02) -> Value:
    """The first true value of `condition`; fails the test when it stays false.

    Args:
        condition: called again and again; name it well, the failure quotes it.
        seconds: how long to wait at most.
        every: pause between two calls, seconds.
    """
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, (
            f"{getattr(condition, '__qualname__', condition)} stayed false for {seconds} s"
        )
        time.sleep(every)
    return value
