"""The processes of runs, forked from one that has loaded the project: a start takes milliseconds instead of a second.

The runner asks for them over a socket, and has a pipe to and from each. The process that forks ends with the runner,
and those that it forked with it, by the kernel's hand (Linux), however it ends.
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
    """A nursery for one run or for several; all its processes have ended after the block."""
    nursery = Nursery()
    try:
        yield nursery
    finally:
        nursery.close()


@dataclass
class Nursery:
    """Asks for processes, and hears which have ended and how. Nothing is started before the first is asked for."""

    ended: dict[int, int] = field(default_factory=dict)
    _forked: list[int] = field(default_factory=list)
    _heard: bytes = b""
    _is_gone: bool = False
    _mother: "subprocess.Popen[bytes] | None" = None
    _channel: socket.socket = field(init=False)

    def start(self, job: Mapping[str, Any]) -> "Hand":
        """A process that is told its job through its pipe: on a command line everybody would see the password."""
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
        """Take in what has been said, waiting so long for it."""
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
        """How it ended (a signal as a negative number); None while it is at work. Without their mother all end."""
        if pid not in self.ended:
            self.listen()
        return self.ended.get(pid, -SIGKILL if self._is_gone else None)

    def kill(self, pid: int) -> None:
        """SIGKILL, by its parent: it alone knows that the number still means this process."""
        with suppress(BrokenPipeError):  # then all of them are gone
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
            argv = bound([sys.executable, "-m", "dashboard.lab.mother"], at_parents_death=SIGKILL)
            self._mother = subprocess.Popen(argv, cwd=ROOT, stdin=theirs.fileno())


@dataclass
class Hand:
    """One process, as its runner has it."""

    nursery: Nursery
    stdin: TextIO
    stdout: TextIO
    pid: int = 0

    def poll(self) -> int | None:
        """How it ended; None while it is at work."""
        return self.nursery.status_of(self.pid)

    def wait(self, seconds: float = START_SECONDS) -> int:
        """The same once it has ended. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"A process of the lab did not end within {seconds} s.")
            self.nursery.listen(0.1)
        return status

    def kill(self) -> None:
        """End it; it is gone afterwards, and its pipes are closed."""
        if self.poll() is None:
            self.nursery.kill(self.pid)
            self.wait()

    def close(self) -> None:
        """End it and let go of its pipes."""
        self.kill()
        with suppress(BrokenPipeError):  # what it was told last, it does not need to hear
            self.stdin.close()
        self.stdout.close()

    def tell(self, line: str) -> None:
        """One line to it; one that has ended hears nothing."""
        with suppress(BrokenPipeError):
            self.stdin.write(f"{line}\n")
            self.stdin.flush()

    def wait_until_ready(self) -> None:
        """Until it stands at the line. Raises LabRefused with what it said instead."""
        said = ""
        if select.select([self.stdout], [], [], START_SECONDS)[0]:
            said = self.stdout.readline()
        if said != "ready\n":
            raise LabRefused(f"A process of the lab did not start; its log says more. {said}".strip())

    def last_words(self) -> str:
        """What one that has ended said since it was ready."""
        return self.stdout.read().removeprefix("ready\n").strip()
