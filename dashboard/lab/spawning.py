"""Start the processes of runs by forking a loaded one: milliseconds instead of a second.

The runner requests forks over a socket, and has a pipe to and from each process. The kernel ends the forking process
with the runner, and its forks with it (Linux).
"""

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL
from typing import Any, TextIO

from dashboard.lab.schema import LabRefused
from dashboard.processes import bound

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60


@contextmanager
def opened() -> Iterator["Nursery"]:
    """A `Nursery` for one run or several; all its processes have ended after the block."""
    nursery = Nursery()
    try:
        yield nursery
    finally:
        nursery.close()


@dataclass
class Nursery:
    """Requests processes and records their exit. It starts nothing before the first request."""

    ended: dict[int, int] = field(default_factory=dict)
    _forked: list[int] = field(default_factory=list)
    _heard: bytes = b""
    _is_gone: bool = False
    _mother: "subprocess.Popen[bytes] | None" = None
    _channel: socket.socket = field(init=False)

    def start(self, job: Mapping[str, Any]) -> "Hand":
        """Start a process. Its job goes through a pipe, because a command line would show the password."""
        if self._mother is None or self._is_gone:
            self.close()
            self._open()
        child_in, to_child = os.pipe()
        from_child, child_out = os.pipe()
        socket.send_fds(self._channel, [b"fork\n"], [child_in, child_out])
        os.close(child_in)
        os.close(child_out)
        hand = Hand(self, os.fdopen(to_child, "w"), os.fdopen(from_child))
        deadline = time.monotonic() + START_SECONDS
        while not self._forked:
            self.listen(1.0)
            if self._is_gone or time.monotonic() > deadline:
                raise LabRefused("The process that starts those of a run does not answer; its log says more.")
        hand.pid = self._forked.pop()
        hand.tell(json.dumps(job))
        return hand

    def listen(self, seconds: float = 0.0) -> None:
        """Read messages, waiting up to `seconds` for the first."""
        while not self._is_gone and select.select([self._channel], [], [], seconds)[0]:
            data = self._channel.recv(4096)
            self._is_gone = not data
            *lines, self._heard = (self._heard + data).split(b"\n")
            for what, pid, status in (line.split() for line in lines):
                if what == b"forked":
                    self._forked.append(int(pid))
                else:
                    self.ended[int(pid)] = int(status)
            seconds = 0.0

    def status_of(self, pid: int) -> int | None:
        """Its exit status (a signal is negative), None while it runs. All end with the forking process."""
        if pid not in self.ended:
            self.listen()
        return self.ended.get(pid, -SIGKILL if self._is_gone else None)

    def kill(self, pid: int) -> None:
        """Send SIGKILL through its parent, which alone knows that the pid still belongs to this process."""
        with suppress(BrokenPipeError):  # then all processes are gone
            self._channel.sendall(f"kill {pid}\n".encode())

    def close(self) -> None:
        """End everything that was started."""
        if self._mother is not None:
            self._channel.close()
            self._mother.kill()
            self._mother.wait()
            self._mother, self._heard, self._is_gone = None, b"", False

    def _open(self) -> None:
        self._channel, theirs = socket.socketpair()
        with theirs:
            argv = bound([sys.executable, "-m", "dashboard.lab.forkserver"], at_parents_death=SIGKILL)
            self._mother = subprocess.Popen(argv, cwd=ROOT, stdin=theirs.fileno())


@dataclass
class Hand:
    """One process, as the runner sees it."""

    nursery: Nursery
    stdin: TextIO
    stdout: TextIO
    pid: int = 0

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""
        return self.nursery.status_of(self.pid)

    def wait(self, seconds: float = START_SECONDS) -> int:
        """Wait for its exit status. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"A process of the lab did not end within {seconds} s.")
            self.nursery.listen(0.1)
        return status

    def kill(self) -> None:
        """Kill it and wait until it is gone."""
        if self.poll() is None:
            self.nursery.kill(self.pid)
            self.wait()

    def close(self) -> None:
        """Kill it and close its pipes."""
        self.kill()
        with suppress(BrokenPipeError):  # it does not need the last line
            self.stdin.close()
        self.stdout.close()

    def tell(self, line: str) -> None:
        """Send it one line, unless it has ended."""
        with suppress(BrokenPipeError):
            self.stdin.write(f"{line}\n")
            self.stdin.flush()

    def wait_until_ready(self) -> None:
        """Wait until it is ready. Raises LabRefused with its output otherwise."""
        said = ""
        if select.select([self.stdout], [], [], START_SECONDS)[0]:
            said = self.stdout.readline()
        if said != "ready\n":
            raise LabRefused(f"A process of the lab did not start; its log says more. {said}".strip())

    def last_words(self) -> str:
        """The output of an ended process since it was ready."""
        return self.stdout.read().removeprefix("ready\n").strip()
