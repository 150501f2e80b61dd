"""Processes that hold a named lock until told to stop, for tests that freeze and kill them.

Run as a script, this file is such a process. It takes the lock from its arguments and reports in lines of JSON. On
stdin it accepts the commands `state` and `release`.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dashboard.processes import bound

ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Locker:
    """One such process, for the test."""

    process: "subprocess.Popen[str]"
    lines: "queue.Queue[dict[str, Any]]"

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def ask(self, command: str) -> dict[str, Any]:
        """Send a command; returns the answer."""
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return self.hear()

    def hear(self, seconds: float = 20) -> dict[str, Any]:
        """The next message; fails if the process has ended."""
        said = self.lines.get(timeout=seconds)
        assert said, f"process {self.pid} has ended"
        return said


@contextlib.contextmanager
def locker(database_url: str, name: str, **options: object) -> Iterator[Locker]:
    """A process that is about to take the lock `name`; `options` are those of `lock()`. It ends with the block."""
    environment = {**os.environ, "DATABASE_URL": database_url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    argv = [sys.executable, "-m", "tests.lockers", name, json.dumps(options)]
    process = subprocess.Popen(
        bound(argv, at_parents_death=signal.SIGKILL),
        cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    lines: queue.Queue[dict[str, Any]] = queue.Queue()
    reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
    reader.start()
    try:
        started = Locker(process, lines)
        assert started.hear()["event"] == "asks"
        yield started
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stdin.close()
        process.stdout.close()


def _read(process: "subprocess.Popen[str]", lines: "queue.Queue[dict[str, Any]]") -> None:
    for line in process.stdout:
        lines.put(json.loads(line))
    lines.put({})


def main(name: str, options: dict[str, Any]) -> None:
    import django

    django.setup()
    from tasks.exceptions import RowlockError
    from tasks.locking import lock

    held = lock(name, **options)
    _say(event="asks")
    try:
        with held:
            _say(event="held", fence=held.fence, owner=held.owner)
            for line in sys.stdin:
                if line.strip() == "release":
                    break
                _say(event="state", is_lost=held.is_lost, fence=held.fence)
        _say(event="released")
    except RowlockError as error:
        _say(event=type(error).__name__, message=str(error))


def _say(**event: object) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
