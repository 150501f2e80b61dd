"""A process beside the workers, which the supervisor forks for a periodic duty of another app."""

import logging
import os
import select
import signal
import time
from collections.abc import Callable
from importlib import import_module
from typing import Protocol, cast

import psycopg

logger = logging.getLogger(__name__)

ASK_SECONDS = 2.0
AFTER_AN_ERROR_SECONDS = 30.0
MODULES: list[str] = []
Wait = Callable[[float], bool]


class Duty(Protocol):
    """The module of a duty."""

    def is_needed(self, connection: psycopg.Connection) -> bool:
        """True if a process should do it now; asked often, in the session of the supervisor."""

    def serve(self, wait: Wait) -> None:
        """Do it until it is not needed. `wait(seconds)` returns True, perhaps earlier, if the supervisor has ended."""


def register_companion(module: str) -> None:
    """Let each supervisor do the duty of this module (see Duty), in a process of its own. A burst does none."""
    if module not in MODULES:
        MODULES.append(module)


class Companion:
    """One duty, and its process while there is one (`pid`, else 0)."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.duty = cast("Duty", import_module(module))
        self.pid = 0
        self.ask_at = 0.0

    def is_wanted(self, connection: psycopg.Connection | None) -> bool:
        """True if its process is missing. A duty that cannot be asked for never disturbs the supervisor."""
        now = time.monotonic()
        if self.pid or connection is None or connection.closed or now < self.ask_at:
            return False
        self.ask_at = now + ASK_SECONDS
        try:
            return self.duty.is_needed(connection)
        except psycopg.OperationalError as error:
            logger.info("%s was not asked: %s", self.module, str(error).partition("\n")[0])
        except psycopg.Error as error:
            logger.warning("%s is not done here: %s", self.module, str(error).partition("\n")[0])
            self.ask_at = now + AFTER_AN_ERROR_SECONDS
        return False

    def main(self, let_go: Callable[[], None], lifeline: int) -> int:
        """In the forked process: do the duty, and end with the supervisor, whose death closes `lifeline`."""
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            let_go()
            self.duty.serve(lambda seconds: bool(select.select([lifeline], [], [], seconds)[0]))
        except BaseException:
            logger.exception("%s ended by an error of its own", self.module)
            return 1
        return 0

    def ended(self, status: int) -> None:
        """Note the end of its process; after an error the next one waits."""
        self.pid = 0
        if os.waitstatus_to_exitcode(status) > 0:
            self.ask_at = time.monotonic() + AFTER_AN_ERROR_SECONDS

    def end(self) -> None:
        """End its process, and wait for that. One that has just begun, or is stopped, would not hear SIGTERM."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0
