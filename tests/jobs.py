"""Commands for `run_locked` in tests, and helpers that read their results."""

import os
from pathlib import Path

from tasks.models import CommandRun, Lock
from tests.commands import Outcome, run_process
from tests.waiting import wait_until

NAME = "job"


class Gate:
    """A command that prints `started`, then `through` when the gate is opened, and ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)

    @property
    def command(self) -> list[str]:
        return ["--shell", "--", "sh", "-c", f"echo started; read line < {self.path}; echo $line"]

    def open(self) -> None:
        self.path.write_text("through\n")


def shell(*argv: object, options: tuple[object, ...] = ()) -> Outcome:
    """Run a program under the lock `job`, to its end."""
    return run_process("run_locked", NAME, "--json", *options, "--shell", "--", *argv)


def the_run() -> CommandRun:
    """The only recorded run."""
    return CommandRun.objects.get()


def wait_until_held() -> None:
    def is_held() -> bool:
        return Lock.objects.filter(name=NAME, owner__isnull=False).exists()

    wait_until(is_held)
