"""The command line of `run_locked`: the program to start, and its redacted form."""

import logging
import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from django.core.management import get_commands
from django.db import DatabaseError, InterfaceError, connection

from tasks.exceptions import RowlockError
from tasks.locking.named.holder import Holder
from tasks.models import CommandRun
from tasks.support.database import fetch
from tasks.support.redaction import storable
from tasks.support.secret_finder import SecretFinder

logger = logging.getLogger(__name__)


class UnknownCommand(RowlockError, LookupError):
    """No management command has this name."""


def program(words: Sequence[str], *, is_shell: bool) -> list[str]:
    """The program to start, with its arguments: a management command, or with `is_shell` any program.

    With `is_shell` a single word is a line for the shell; several words are a program and its arguments, without a
    shell. Raises UnknownCommand.
    """
    if is_shell:
        return ["/bin/sh", "-c", words[0]] if len(words) == 1 else list(words)
    if words[0] not in get_commands():
        raise UnknownCommand(
            f"There is no management command {words[0]!r}: `manage.py help` lists them. For any program add --shell."
        )
    started_as = Path(sys.argv[0])
    manage = [str(started_as.resolve())] if started_as.name == "manage.py" else ["-m", "django"]
    return [sys.executable, *manage, *words]


def examined(words: Sequence[str], *, is_shell: bool) -> tuple[list[str], set[str]]:
    """The redacted command line, and the secrets found in it."""
    finder = SecretFinder()
    if not (is_shell and len(words) == 1):
        return list(finder.words(words)), finder.secrets
    parts = list(finder.words(_split(words[0])))
    return [shlex.join(parts) if finder.secrets else words[0]], finder.secrets


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


Outcome = CommandRun.Outcome
PERSIST_SECONDS = 15.0
RETRY_SECONDS = 0.5

# A run begins with the lock held, so earlier ones that still count as running have died.
START = """
WITH dead AS (
    UPDATE tasks_commandrun SET outcome = 'abandoned', finished_at = clock_timestamp()
    WHERE name = %(name)s::text AND outcome = 'running'
)
INSERT INTO tasks_commandrun (name, argv, hostname, pid, fence, started_at)
VALUES (%(name)s::text, %(argv)s::text[], %(hostname)s::text, %(pid)s::int, %(fence)s::bigint, clock_timestamp())
RETURNING id
"""

SKIP = """
INSERT INTO tasks_commandrun (name, argv, hostname, pid, held_by, finished_at, outcome, exit_status)
VALUES (%(name)s::text, %(argv)s::text[], %(hostname)s::text, %(pid)s::int, %(held_by)s::text, clock_timestamp(),
    'skipped', %(exit_status)s::int)
"""

# A loss that is noticed at the very end corrects the earlier row.
FINISH = """
WITH run AS (
    UPDATE tasks_commandrun
    SET outcome = %(outcome)s::text, exit_status = %(exit_status)s::int, output = %(output)s::text,
        finished_at = clock_timestamp()
    WHERE id = %(id)s::bigint RETURNING name, started_at, outcome
)
UPDATE tasks_expectedcommand AS expected SET succeeded_at = run.started_at
FROM run WHERE expected.name = run.name AND run.outcome = 'succeeded'
"""


def start(name: str, argv: Sequence[str], fence: int) -> int:
    """Record the start of a run under the lock with this fence; returns the id of its row."""
    run_id: int = fetch(connection, START, {**_here(name, argv), "fence": fence})[0]["id"]
    return run_id


def skip(name: str, argv: Sequence[str], holder: Holder | None, exit_status: int) -> None:
    """Record a run that did not begin, because the lock was held."""
    held_by = storable(holder.who) if holder else ""
    _execute(SKIP, {**_here(name, argv), "held_by": held_by, "exit_status": exit_status})


def finish(run_id: int, outcome: str, exit_status: int, output: str) -> None:
    """Record the end of a run. If the database is unavailable for PERSIST_SECONDS, the outcome is only logged."""
    params = {"id": run_id, "outcome": outcome, "exit_status": exit_status, "output": storable(output)}
    if not _persist(lambda: _execute(FINISH, params)):
        logger.error("run %s ended as %s with exit status %s, and that could not be kept", run_id, outcome, exit_status)


def _here(name: str, argv: Sequence[str]) -> dict[str, Any]:
    argv = [storable(word) for word in argv]
    return {"name": name, "argv": argv, "hostname": socket.gethostname(), "pid": os.getpid()}


def _execute(statement: str, params: dict[str, Any]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, params)


def _persist(write: Callable[[], None]) -> bool:
    deadline = time.monotonic() + PERSIST_SECONDS
    while True:
        try:
            write()
        except (DatabaseError, InterfaceError) as error:
            connection.close()
            if time.monotonic() >= deadline:
                return False
            logger.warning("the end of a run was not written, trying again: %s", " ".join(str(error).split()))
            time.sleep(RETRY_SECONDS)
        else:
            return True
