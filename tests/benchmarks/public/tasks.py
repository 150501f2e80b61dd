"""The public benchmark's job in Rowlock's worker: it works for JOB_WORK_MS and tells the adapter how long it waited."""

import asyncio
import contextlib
import os
import threading
import time

from tasks.framework.decorator import task
from tests.benchmarks.peers import wire

WORK_SECONDS = int(os.environ.get("JOB_WORK_MS", "1")) / 1000
AT_ONCE = 400  # waits in a line: with these, a pipe takes it whole

_waits: list[float] = []
_completed = 0
_teller: threading.Thread | None = None


@task
async def job(seq: int, enqueued_at: float, padding: str) -> None:
    global _completed
    _waits.append(1000 * (time.time() - enqueued_at))
    await asyncio.sleep(WORK_SECONDS)
    _completed += 1
    start_to_tell()


def start_to_tell() -> None:
    """In each worker process once: a thread started before the fork would be missing after it."""
    global _teller
    if _teller is None:
        _teller = threading.Thread(target=_tell, daemon=True)
        _teller.start()


def _tell() -> None:
    told = 0
    with contextlib.suppress(BrokenPipeError):  # the adapter has been killed, and its guard kills this process
        while True:
            time.sleep(wire.TELL_SECONDS)
            while (ended := _completed - told) or _waits:
                told += ended
                waits, _waits[:AT_ONCE] = _waits[:AT_ONCE], []
                wire.tell("jobs", ended, *(f"{wait:.1f}" for wait in waits))
