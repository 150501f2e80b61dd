"""Run a command under a named lock: its program, its output, and its end when the lock is lost."""

import math
import os
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from django.core.management import get_commands
from django.db import connection

from tasks.exceptions import LockHeld, LockLost, RowlockError
from tasks.locking.named.holder import Holder
from tasks.locking.named.lock import HELD_VARIABLE, Lock, held_fences, lock
from tasks.models import CommandRun
from tasks.schedule import expectations, guard
from tasks.support.redaction import SecretFinder, redact, redact_text

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


def redacted(words: Sequence[str], *, is_shell: bool) -> tuple[list[str], set[str]]:
    """The redacted command line, and the secrets found in it."""
    finder = SecretFinder()
    if not (is_shell and len(words) == 1):
        return list(finder.words(words)), finder.secrets
    try:
        parts = shlex.split(words[0])
    except ValueError:
        parts = words[0].split()
    parts = list(finder.words(parts))
    return [shlex.join(parts) if finder.secrets else words[0]], finder.secrets


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
        self._left_out = 0
        self._head = self._tail = b""

    def add(self, chunk: bytes) -> None:
        room = self.kept_bytes - len(self._head)
        self._head += chunk[:room]
        tail = self._tail + chunk[room:]
        self._tail = tail[-self.kept_bytes :]
        self._left_out += len(tail) - len(self._tail)

    def text(self) -> str:
        """Head and tail as text, with the number of bytes between them; invalid UTF-8 is replaced."""
        gap = f"\n[… {self._left_out} bytes left out …]\n" if self._left_out else ""
        return (self._head + gap.encode() + self._tail).decode(errors="replace")


class Child:
    """One command. `run` blocks; meanwhile a handler or another thread may call `signal` and `stop`."""

    def __init__(self, argv: Sequence[str], sink: Sink) -> None:
        self.argv = list(argv)
        self.sink = sink
        self.kept = HeadAndTail()
        self.is_stopped = False  # because its lock was lost
        self.is_signalled = False
        self._kill_at = math.inf
        self._process: subprocess.Popen[bytes] | None = None
        self._pending: int | None = None  # a signal that came before the process started
        self._group = threading.RLock()  # prevents signals to a group that is gone

    def run(self, held: Lock) -> int:
        """Run the command to its end; returns its exit status, negative for the signal that ended it."""
        link, far_end = socket.socketpair()
        with far_end:
            process = self._start(far_end, held)
        with process, link:  # if anything fails here, the link closes first, and the guard ends the group
            self._follow(process, link, held)
            with self._group:
                self._process = None
                returncode = process.wait()
        if returncode < 0 or self.is_signalled or self.is_stopped:
            # Shells make their background jobs ignore an interrupt.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
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

    def _start(self, far_end: socket.socket, held: Lock) -> "subprocess.Popen[bytes]":
        script = [sys.executable, "-I", "-S", guard.__file__, str(far_end.fileno()), repr(_deadline(held))]
        fences = ",".join(str(fence) for fence in sorted(held_fences()))  # to detect cycles
        ours = {"ROWLOCK_LOCK_NAME": held.name, "ROWLOCK_LOCK_FENCE": str(held.fence), HELD_VARIABLE: fences}
        with self._group:
            self._process = subprocess.Popen(
                [*script, *self.argv],
                env={**os.environ, **ours},
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
                if time.monotonic() >= self._kill_at:
                    self._send(signal.SIGKILL)
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
                self.kept.add(chunk)
                self.sink(key.data, chunk)


def _deadline(held: Lock) -> float:
    """The time until which the lock is certainly ours, by the monotonic clock that all processes share."""
    return time.monotonic() + held.seconds_left


@dataclass(frozen=True)
class Result:
    """The outcome. `problem` is a sentence for people, empty after a success."""

    outcome: str
    exit_status: int
    fence: int | None = None
    holder: Holder | None = None
    problem: str = ""
    output: str = ""


def run_locked(
    name: str,
    words: Sequence[str],
    *,
    sink: Sink,
    is_shell: bool = False,
    ttl: float = 30.0,
    wait: float | None = None,
    expected_every: timedelta | None = None,
) -> Result:
    """Run a command line unless the lock `name` is held; `sink` gets its output. Durations of the lock are in seconds.

    Raises UnknownCommand, LockCycle and LockUnavailable, all before anything has run. SIGTERM and SIGINT are passed on
    to the command while it runs; main thread only.
    """
    child = Child(program(words, is_shell=is_shell), sink)
    shown, secrets = redacted(words, is_shell=is_shell)
    if expected_every is not None:
        expectations.expect(name, expected_every)
    try:
        with lock(name, ttl=ttl, wait=wait, on_lost=child.stop) as held:
            run_id = expectations.start(name, shown, held.fence or 0)
            connection.close()  # it would be idle while the command runs
            with _passing_on_signals(child):
                returncode = child.run(held)
            result = _result(child, held, returncode, redact(redact_text(child.kept.text(), secrets)))
            expectations.finish(run_id, result.outcome, result.exit_status, result.output)
    except LockHeld as refusal:
        expectations.skip(name, shown, refusal.holder, HELD_ELSEWHERE)
        return Result(Outcome.SKIPPED, HELD_ELSEWHERE, holder=refusal.holder, problem=str(refusal))
    except LockLost:
        if result.outcome != Outcome.LOST:  # only the release has found it out
            result = _lost(result, name)
            expectations.finish(run_id, result.outcome, result.exit_status, result.output)
    return result


def _result(child: Child, held: Lock, returncode: int, output: str) -> Result:
    exit_status = returncode if returncode >= 0 else SIGNAL_BASE - returncode
    result = Result(Outcome.SUCCEEDED, exit_status, held.fence, output=output)
    if held.is_lost or child.is_stopped:
        return _lost(result, held.name)
    if not returncode:
        return result
    how = f"with exit status {exit_status}" if returncode > 0 else f"by the signal {-returncode}"
    is_signalled = returncode < 0 or child.is_signalled
    outcome = Outcome.SIGNALLED if is_signalled else Outcome.FAILED
    return replace(result, outcome=outcome, problem=f"{held.name}: the command ended {how}.")


def _lost(result: Result, name: str) -> Result:
    problem = (
        f"The lock {name!r} (fence {result.fence}) was lost while its command ran, and the command was stopped: "
        "somebody else may run it now. Look at what it had done until then."
    )
    return replace(result, outcome=Outcome.LOST, exit_status=result.exit_status or FAILED, problem=problem)


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
