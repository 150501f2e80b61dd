"""The rows of `tasks_commandrun`: each run of a command, and each that was skipped."""

import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from django.db import DatabaseError, InterfaceError, connection

from tasks.database import fetch
from tasks.locking.leases.holder import Holder
from tasks.models import CommandRun
from tasks.redaction import storable

logger = logging.getLogger(__name__)
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
