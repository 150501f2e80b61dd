"""What measured processes tell the benchmark: lines in the named pipe BENCH_PIPE, each written at once and whole.

Without dependencies, as it runs in the peers' environment too. Times are seconds of CLOCK_MONOTONIC, which all
processes of a machine share.
"""

import os
import sys
import threading
import time

TELL_SECONDS = 0.05

_pipe = None
_count = 0
_teller = None


def tell(*words: object) -> None:
    """Write one line."""
    global _pipe
    if _pipe is None:
        _pipe = os.open(os.environ["BENCH_PIPE"], os.O_WRONLY)
    os.write(_pipe, (" ".join(map(str, words)) + "\n").encode())


def count(number: int = 1) -> None:
    """In a handler that is only counted: the sum is told at the first and then every TELL_SECONDS."""
    global _count, _teller
    _count += number
    if _teller is None:
        _teller = threading.Thread(target=_tell_the_count, daemon=True)
        tell("count", os.getpid(), _count, time.monotonic())
        _teller.start()


def ran(number: int, began: float) -> None:
    """In a handler of a task with a number: it began then and ends now."""
    tell("ran", number, began, time.monotonic())


def sent(number: int, at: float) -> None:
    """The enqueue call of this task began then."""
    tell("sent", number, at)


def ticked() -> None:
    """In a handler that a schedule runs: it begins now, by the clock on the wall."""
    tell("ticked", time.time())


def ready() -> None:
    """Say so, and wait for the line on stdin that everybody starts at."""
    tell("ready")
    sys.stdin.readline()


def rate(enqueued: int, began: float) -> None:
    """So many tasks were enqueued since then."""
    tell("rate", enqueued, time.monotonic() - began)


def _tell_the_count() -> None:
    told = 0
    while True:
        time.sleep(TELL_SECONDS)
        if _count != told:
            told = _count
            tell("count", os.getpid(), told, time.monotonic())
