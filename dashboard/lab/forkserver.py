"""Start the processes of a run by forking a loaded one: milliseconds instead of a second.

The runner starts `python -m dashboard.lab.forkserver` with a socket as its stdin. That process loads the project once.
It opens no connection and starts no thread, so a fork of it equals a new process. For each socket that it receives, it
forks a process that talks to the runner through it, and answers the pid. The kernel ends the forkserver with the
runner, and the forks with the forkserver (Linux).
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import django

from dashboard import project
from dashboard.lab.schema import LabRefused
from dashboard.processes import bound, die_with


def main() -> None:
    """Fork a process for each socket, until the runner closes the channel; then end them all."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    django.setup()
    from dashboard.lab.patterns import PATTERNS

    forkserver, children = os.getpid(), []
    with socket.socket(fileno=os.dup(0)) as channel:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        while sockets := socket.recv_fds(channel, 1, 1)[1]:
            with socket.socket(fileno=sockets[0]) as own_channel:
                pid = os.fork()
                if not pid:
                    channel.close()
                    become_worker(forkserver, own_channel, PATTERNS)
            children.append(pid)
            channel.sendall(str(pid).encode())
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)  # not before: until here no other process can get the pid, so the runner may kill it


def become_worker(forkserver: int, channel: socket.socket, patterns: Mapping[str, Any]) -> NoReturn:
    """Runs in the fork and never returns."""
    from dashboard.lab.worker import do_job

    try:
        die_with(forkserver, signal.SIGKILL)
        do_job(channel, patterns)
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001  this fork must never return into the parent's loop
        traceback.print_exc()
    finally:
        os._exit(0)


ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60


class Forkserver:
    """Starts processes, of which none outlives `close`. It starts its own process for the first of them."""

    _process: "subprocess.Popen[bytes] | None" = None
    _channel: socket.socket

    def start(self, job: Mapping[str, Any]) -> "RunProcess":
        """Start a process. Its job goes through a socket, because a command line would show the password.

        Raises LabRefused.
        """
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = self._open()
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._channel, [b"f"], [theirs.fileno()])
            pid = int(self._channel.recv(20))
        except (OSError, ValueError) as error:
            ours.close()
            self._process.kill()
            raise LabRefused("The process that starts those of a run does not answer; its log says more.") from error
        process = RunProcess(pid, ours)
        process.send(json.dumps(job))
        return process

    def close(self) -> None:
        if self._process is not None:
            self._channel.close()
            self._process.wait()
            self._process = None

    def _open(self) -> "subprocess.Popen[bytes]":
        self._channel, theirs = socket.socketpair()
        self._channel.settimeout(START_SECONDS)
        with theirs:
            argv = bound([sys.executable, "-m", "dashboard.lab.forkserver"], at_parents_death=signal.SIGKILL)
            # Prints of an app's code go to the log: the runner's stdout may have to be JSON. A terminal's Ctrl-C is for
            # the runner alone, which ends the run in order: so the processes have a group of their own.
            options: dict[str, Any] = {"cwd": ROOT, "env": project.environment(), "process_group": 0}
            return subprocess.Popen(argv, stdin=theirs.fileno(), stdout=sys.__stderr__, **options)


@dataclass
class RunProcess:
    """One process, as the runner sees it; its socket closes with it, however it ends."""

    pid: int
    channel: socket.socket
    said: str = ""
    has_ended: bool = False

    @property
    def has_failed(self) -> bool:
        """True if it has ended, and not because its work was done."""
        return self.poll() and self.said != "ready\ndone\n"

    @property
    def error(self) -> str:
        return self.said.removeprefix("ready\n").strip()

    def poll(self, seconds: float = 0.0) -> bool:
        """True if it has ended; waits up to `seconds` until it ends or says something."""
        while not self.has_ended and select.select([self.channel], [], [], seconds)[0]:
            data = b""
            with suppress(ConnectionResetError):  # it ended before it had read everything
                data = self.channel.recv(4096)
            self.said += data.decode()
            self.has_ended, seconds = not data, 0.0
        return self.has_ended

    def wait(self, seconds: float = START_SECONDS) -> None:
        """Wait until it has ended. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while not self.poll(0.1):
            if time.monotonic() > deadline:
                raise TimeoutError(f"A process of the lab did not end within {seconds} s.")

    def kill(self) -> None:
        """Kill it and wait until it is gone."""
        if not self.poll():
            with suppress(ProcessLookupError):  # it ended with the forkserver in between
                os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def close(self) -> None:
        self.kill()
        self.channel.close()

    def send(self, line: str) -> None:
        """Send it one line, unless it has ended."""
        with suppress(ConnectionError):
            self.channel.sendall(f"{line}\n".encode())

    def wait_until_ready(self) -> None:
        """Wait until it is ready. Raises LabRefused with its output otherwise."""
        deadline = time.monotonic() + START_SECONDS
        while "\n" not in self.said and time.monotonic() < deadline and not self.poll(1.0):
            pass
        if not self.said.startswith("ready\n"):
            raise LabRefused(f"A process of the lab did not start; its log says more. {self.said}".strip())


if __name__ == "__main__":
    main()
