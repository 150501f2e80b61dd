"""Processes that overlap, with the code imported once for all of them: forked from one that has it.

As a script: `python -m tests.forks NUMBER COMMAND ARGUMENT…` runs a management command in so many processes; what each
says goes into a file of the current folder, named by its number.
"""

import os
import sys
import traceback
from collections.abc import Callable

import django


def forked(number: int, body: Callable[[int], None]) -> int:
    """Run `body(0)`, `body(1)` … each in a process of its own, at once; how many of them failed.

    Call it before anything has connected to the database: a connection is not shared between processes.
    """
    pids = [_started(body, place) for place in range(number)]
    return sum(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 for pid in pids)


def _started(body: Callable[[int], None], place: int) -> int:
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
        os._exit(status)  # whatever happens, it goes on with nothing that its mother was doing


def main(number: int, command: list[str]) -> int:
    """How many of the processes failed."""
    from django.core.management import execute_from_command_line, get_commands, load_command_class

    load_command_class(get_commands()[command[0]], command[0])

    def run(place: int) -> None:
        os.dup2(os.open(str(place), os.O_WRONLY | os.O_CREAT), sys.stdout.fileno())
        execute_from_command_line(["manage.py", *command])

    return forked(number, run)


if __name__ == "__main__":
    django.setup()
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
