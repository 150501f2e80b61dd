"""A command on a pseudo-terminal of some size, as a person sees it."""

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.commands import start

ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
PERSON = {"TERM": "xterm-256color", "NO_COLOR": "", "COLUMNS": "", "LINES": "", "LANG": "C.UTF-8"}


class Terminal:
    """Return the command's output so far, and its process."""

    def __init__(self, process: subprocess.Popen[str], ours: int) -> None:
        self.process = process
        self.raw = ""
        self._reader = threading.Thread(target=self._read, args=(ours,))
        self._reader.start()

    @property
    def text(self) -> str:
        """The same without colours and movements."""
        return ESCAPE.sub("", self.raw).replace("\r", "")

    def end(self, number: int | None = None) -> int:
        """The exit status, after a signal if there is a number."""
        if number is not None:
            self.process.send_signal(number)
        status = self.process.wait(timeout=60)
        self._reader.join(timeout=60)
        return status

    def _read(self, ours: int) -> None:
        with contextlib.suppress(OSError):  # the other side has closed
            while chunk := os.read(ours, 65_536):
                self.raw += chunk.decode(errors="replace")


@contextmanager
def terminal(name: str, *argv: object, columns: int = 80, rows: int = 24, **env: str) -> Iterator[Terminal]:
    """Run `manage.py NAME …` with a terminal as its stdout and stderr."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    with start(name, *argv, stdout=theirs, stderr=theirs, env={**PERSON, **env}) as process:
        os.close(theirs)
        try:
            yield Terminal(process, ours)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    os.close(ours)


def shown(name: str, *argv: object, columns: int = 80, **env: str) -> Terminal:
    """The terminal after the command has ended."""
    with terminal(name, *argv, columns=columns, **env) as screen:
        screen.end()
    return screen
