"""Overlapping processes, forked from one that has already imported the code.

As a script: `python -m tests.forks NUMBER COMMAND ARGUMENT…` runs a management command in that many processes. Each
writes its output to a file in the current folder, named by its number.
"""

import os
import sys
import traceback
from collections.abc import Callable

import django


def forked(number: int, body: Callable[[int], None]) -> int:
    """Run `body(0)`, `body(1)` … at once, each in its own process; returns the number of failures.

    Call it before anything has connected to the database, because processes cannot share a connection.
    """
    pids = [started(body, place) for place in range(number)]
    return sum(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 for pid in pids)


def started(body: Callable[[int], None], place: int) -> int:
    """Run `body(place)` in a new process; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        body(place)
        sys.stdout.flush()
        status = 0
    finally:
        if status:
            traceback.print_exc()
        os._exit(status)  # the fork must never return into its parent's code


def main(number: int, command: list[str]) -> int:
    """Run the command; returns the number of processes that failed."""
    from django.core.management import execute_from_command_line, get_commands, load_command_class

    load_command_class(get_commands()[command[0]], command[0])

    def run(place: int) -> None:
        os.dup2(os.open(str(place), os.O_WRONLY | os.O_CREAT), sys.stdout.fileno())
        execute_from_command_line(["manage.py", *command])

    return forked(number, run)


if __name__ == "__main__":
    django.setup()
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
