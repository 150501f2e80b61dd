"""Run a command under a named lock: its program, its output, and its end when the lock is lost."""

import os
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from django.core.management import get_commands
from django.db import connection

from tasks.exceptions import LockHeld, LockLost, RowlockError
from tasks.locking.named.holder import Holder
from tasks.locking.named.lock import HELD_VARIABLE, Lock, held_fences, lock
from tasks.models import CommandRun
from tasks.schedule import expectations, guard
from tasks.support.redaction import redact, redact_text
from tasks.support.secret_finder import SecretFinder

KEPT_BYTES = 32_768  # of the output, at each end
TICK_SECONDS = 1.0
TICKS_PER_LEASE = 6
GRACE_SECONDS = 2.0  # between TERM and KILL after the lock is lost: another run may have begun
DRAIN_SECONDS = 0.5  # for the last output; a daemon left behind may keep the pipes open
CHUNK = 65_536  # bytes
FAILED, HELD_ELSEWHERE, SIGNAL_BASE = 1, 75, 128
PASSED_ON = (signal.SIGTERM, signal.SIGINT)

Outcome = CommandRun.Outcome
Sink = Callable[[str, bytes], None]  # the stream's name, and a chunk of its output


class UnknownCommand(RowlockError, LookupError):
    """No management command has this name."""


def program(words: Sequence[str], *, is_shell: bool) -> list[str]:
    """The program to start, with its arguments: a management command, or with `is_shell` any program.

    With `is_shell` a single word is a line for the shell; several words are a program and its arguments, without a
    shell. Raises UnknownCommand.
    """
    if is_shell:
        return ["/bin/sh", "-c", words[0]] if len(words) == 1 else list(words)
    if words[0] not in get_commands():
        raise UnknownCommand(
            f"There is no management command {words[0]!r}: `manage.py help` lists them. For any program add --shell."
        )
    started_as = Path(sys.argv[0])
    manage = [str(started_as.resolve())] if started_as.name == "manage.py" else ["-m", "django"]
    return [sys.executable, *manage, *words]


def examined(words: Sequence[str], *, is_shell: bool) -> tuple[list[str], set[str]]:
    """The redacted command line, and the secrets found in it."""
    finder = SecretFinder()
    if not (is_shell and len(words) == 1):
        return list(finder.words(words)), finder.secrets
    parts = list(finder.words(_split(words[0])))
    return [shlex.join(parts) if finder.secrets else words[0]], finder.secrets


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


class HeadAndTail:
    """The first and the last bytes of a stream of any length, in bounded memory.

    >>> kept = HeadAndTail(4)
    >>> for chunk in (b"one ", b"two ", b"three"):
    ...     kept.add(chunk)
    >>> kept.text()
    'one \\n[… 5 bytes left out …]\\nhree'
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self.kept_bytes = kept_bytes
        self.total = 0
        self._head = self._tail = b""

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        room = self.kept_bytes - len(self._head)
        self._head += chunk[:room]
        self._tail = (self._tail + chunk[room:])[-self.kept_bytes :]

    def text(self) -> str:
        """Head and tail as text, with the number of bytes between them; invalid UTF-8 is replaced."""
        left_out = self.total - len(self._head) - len(self._tail)
        if not left_out:
            return (self._head + self._tail).decode(errors="replace")
        head, tail = self._head.decode(errors="replace"), self._tail.decode(errors="replace")
        return f"{head}\n[… {left_out} bytes left out …]\n{tail}"


class Child:
    """One command. `run` blocks; meanwhile a handler or another thread may call `signal` and `stop`."""

    def __init__(self, argv: Sequence[str], sink: Sink) -> None:
        self.argv = list(argv)
        self.sink = sink
        self.is_stopped = False  # because its lock was lost
        self.is_signalled = False
        self._kill_at: float | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pending: int | None = None  # a signal that came before the process started
        self._group = threading.RLock()  # prevents signals to a group that is gone

    def run(self, environment: Mapping[str, str], held: Lock) -> int:
        """Run the command to its end; returns its exit status, negative for the signal that ended it."""
        link, far_end = socket.socketpair()
        with far_end:
            process = self._start(far_end, environment, held)
        with process, link:  # if anything fails here, the link closes first, and the guard ends the group
            self._follow(process, link, held)
            with self._group:
                self._process = None
                returncode = process.wait()
        if returncode < 0 or self.is_signalled or self.is_stopped:
            _kill_rest(process.pid)
        return returncode

    def signal(self, number: int) -> None:
        """Pass a signal on to the whole group; the second signal kills it."""
        self._send(signal.SIGKILL if self.is_signalled else number)
        self.is_signalled = True

    def stop(self) -> None:
        """The lock is lost: terminate the command, and kill it after GRACE_SECONDS."""
        self.is_stopped = True
        self._kill_at = time.monotonic() + GRACE_SECONDS
        self._send(signal.SIGTERM)

    def _start(self, far_end: socket.socket, environment: Mapping[str, str], held: Lock) -> "subprocess.Popen[bytes]":
        script = [sys.executable, "-I", "-S", guard.__file__, str(far_end.fileno()), repr(_deadline(held))]
        with self._group:
            self._process = subprocess.Popen(
                [*script, *self.argv],
                env=environment,
                stdin=subprocess.DEVNULL if sys.stdin is None or sys.stdin.isatty() else None,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[far_end.fileno()],
                process_group=0,
            )
            if self._pending is not None:
                self._send(self._pending)
            return self._process

    def _send(self, number: int) -> None:
        with self._group:
            if self._process is None:
                self._pending = number
            else:
                os.killpg(self._process.pid, number)

    def _follow(self, process: "subprocess.Popen[bytes]", link: socket.socket, held: Lock) -> None:
        """Pass on the output until the end; send our deadline to the guard several times in each lease."""
        tick = min(TICK_SECONDS, held.ttl / TICKS_PER_LEASE)
        with selectors.DefaultSelector() as selector:
            selector.register(link, selectors.EVENT_READ)
            for name, stream in (("stdout", process.stdout), ("stderr", process.stderr)):
                assert stream is not None
                selector.register(stream, selectors.EVENT_READ, name)
            while link in selector.get_map():
                with suppress(BrokenPipeError):
                    link.send(guard.DEADLINE.pack(_deadline(held)))
                self._kill_when_due()
                self._read(selector, tick)
            drained_at = time.monotonic() + DRAIN_SECONDS
            while selector.get_map() and time.monotonic() < drained_at:
                self._read(selector, DRAIN_SECONDS)

    def _read(self, selector: selectors.BaseSelector, seconds: float) -> None:
        for key, _ in selector.select(seconds):
            chunk = b""
            with suppress(ConnectionResetError):  # the guard ended before it read our last message
                chunk = os.read(key.fd, CHUNK)
            if not chunk:
                selector.unregister(key.fileobj)
            elif key.data:
                self.sink(key.data, chunk)

    def _kill_when_due(self) -> None:
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._send(signal.SIGKILL)


def _deadline(held: Lock) -> float:
    """The time until which the lock is certainly ours, by the monotonic clock that all processes share."""
    return time.monotonic() + held.seconds_left


def _kill_rest(group: int) -> None:
    """Kill the rest of the group: shells make their background jobs ignore an interrupt."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


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
        expectations.skip(job.name, execution.shown, refusal.holder, HELD_ELSEWHERE)
        return Result(Outcome.SKIPPED, HELD_ELSEWHERE, holder=refusal.holder, problem=str(refusal))
    return execution.under(held)


class _Execution:
    def __init__(self, job: Job, sink: Sink) -> None:
        self.job = job
        self.child = Child(program(job.words, is_shell=job.is_shell), self._pass_on)
        self._sink = sink
        self._kept = HeadAndTail()
        self.shown, self._secrets = examined(job.words, is_shell=job.is_shell)

    def under(self, held: Lock) -> Result:
        """Run it under the held lock, and release the lock."""
        try:
            run_id = expectations.start(self.job.name, self.shown, held.fence or 0)
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
        expectations.finish(run_id, result.outcome, result.exit_status, result.output)

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
