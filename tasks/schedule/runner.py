"""Run a command under a named lock: one at a time across machines, recorded, stopped when the lock is lost."""

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from django.db import connection

from tasks.exceptions import LockHeld, LockLost
from tasks.locking.leases.holder import Holder
from tasks.locking.lock import HELD_VARIABLE, Lock, held_fences, lock
from tasks.redaction import redact, redact_text
from tasks.schedule import expectations, runs, words
from tasks.schedule.child import Child, Sink
from tasks.schedule.output import HeadAndTail
from tasks.schedule.runs import Outcome

FAILED, HELD_ELSEWHERE, SIGNAL_BASE = 1, 75, 128
PASSED_ON = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True)
class Job:
    """A command line to run under the lock `name`. Durations of the lock are in seconds."""

    name: str
    words: Sequence[str]
    is_shell: bool = False
    ttl: float = 30.0
    wait: float | None = None
    expected_every: timedelta | None = None


@dataclass(frozen=True)
class Result:
    """The outcome. `problem` is a sentence for people, empty after a success."""

    outcome: str
    exit_status: int
    fence: int | None = None
    holder: Holder | None = None
    problem: str = ""
    output: str = ""


def run_locked(job: Job, sink: Sink) -> Result:
    """Run the job unless its lock is held; `sink` gets its output.

    Raises UnknownCommand, LockCycle and LockUnavailable, all before anything has run. SIGTERM and SIGINT are passed on
    to the command while it runs; main thread only.
    """
    execution = _Execution(job, sink)
    if job.expected_every is not None:
        expectations.expect(job.name, job.expected_every)
    held = lock(job.name, ttl=job.ttl, wait=job.wait, on_lost=execution.child.stop)
    try:
        held.acquire()
    except LockHeld as refusal:
        runs.skip(job.name, execution.shown, refusal.holder, HELD_ELSEWHERE)
        return Result(Outcome.SKIPPED, HELD_ELSEWHERE, holder=refusal.holder, problem=str(refusal))
    return execution.under(held)


class _Execution:
    def __init__(self, job: Job, sink: Sink) -> None:
        self.job = job
        self.child = Child(words.program(job.words, is_shell=job.is_shell), self._pass_on)
        self._sink = sink
        self._kept = HeadAndTail()
        self.shown, self._secrets = words.examined(job.words, is_shell=job.is_shell)

    def under(self, held: Lock) -> Result:
        """Run it under the held lock, and release the lock."""
        try:
            run_id = runs.start(self.job.name, self.shown, held.fence or 0)
            result = self._run(held)
            self._finish(run_id, result)
        finally:
            was_held = _let_go(held)
        if not was_held and result.outcome != Outcome.LOST:
            result = self._lost(result.exit_status, held.fence)
            self._finish(run_id, result)
        return result

    def _run(self, held: Lock) -> Result:
        connection.close()  # it would be idle while the command runs
        with _passing_on_signals(self.child):
            returncode = self.child.run(_environment(held), held)
        exit_status = returncode if returncode >= 0 else SIGNAL_BASE - returncode
        if held.is_lost or self.child.is_stopped:
            return self._lost(exit_status, held.fence)
        if not returncode:
            return self._result(Outcome.SUCCEEDED, 0, held.fence)
        how = f"with exit status {exit_status}" if returncode > 0 else f"by the signal {-returncode}"
        is_signalled = returncode < 0 or self.child.is_signalled
        outcome = Outcome.SIGNALLED if is_signalled else Outcome.FAILED
        return self._result(outcome, exit_status, held.fence, f"{self.job.name}: the command ended {how}.")

    def _lost(self, exit_status: int, fence: int | None) -> Result:
        problem = (
            f"The lock {self.job.name!r} (fence {fence}) was lost while its command ran, and the command was stopped: "
            "somebody else may run it now. Look at what it had done until then."
        )
        return self._result(Outcome.LOST, exit_status or FAILED, fence, problem)

    def _result(self, outcome: str, exit_status: int, fence: int | None, problem: str = "") -> Result:
        output = redact(redact_text(self._kept.text(), self._secrets))
        return Result(outcome, exit_status, fence, problem=problem, output=output)

    def _finish(self, run_id: int, result: Result) -> None:
        runs.finish(run_id, result.outcome, result.exit_status, result.output)

    def _pass_on(self, stream: str, chunk: bytes) -> None:
        self._kept.add(chunk)
        self._sink(stream, chunk)


def _environment(held: Lock) -> dict[str, str]:
    """The command's environment: its lock, the fence for its writes, and all held fences, to detect cycles."""
    fences = ",".join(str(fence) for fence in sorted(held_fences()))
    return {**os.environ, "ROWLOCK_LOCK_NAME": held.name, "ROWLOCK_LOCK_FENCE": str(held.fence), HELD_VARIABLE: fences}


def _let_go(held: Lock) -> bool:
    try:
        held.release()
    except LockLost:
        return False
    return True


@contextmanager
def _passing_on_signals(child: Child) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, lambda number, frame: child.signal(number)) for number in PASSED_ON}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
