"""A command in its own process group, under a guard that ends it when its lock may be lost."""

import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from tasks.locking.lock import Lock
from tasks.schedule import guard

TICK_SECONDS = 1.0
TICKS_PER_LEASE = 6
GRACE_SECONDS = 2.0  # between TERM and KILL after the lock is lost: another run may have begun
DRAIN_SECONDS = 0.5  # for the last output; a daemon left behind may keep the pipes open
CHUNK = 65_536

Sink = Callable[[str, bytes], None]  # the stream's name, and a chunk of its output


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
