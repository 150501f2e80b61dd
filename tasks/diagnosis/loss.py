"""Find what the database has lost, as in a failover to a standby that lacked the last commits.

The database cannot know it by itself. There are two witnesses: workers that held claims which no row has, and enqueuers
that kept the ids of their tasks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tasks.support.database import Connection, fetch

# A version only rises, so a lower one is a former state of the row. Where none was found and the archive has none, the
# row was lost, or deleted while its worker was silent.
LOST_CLAIMS = """
SELECT refused.task_id AS id, refused.worker_id AS worker, refused.at, refused.expected_version AS held,
    refused.actual_version AS found
FROM tasks_refusedwrite AS refused
WHERE (%(since)s::interval IS NULL OR refused.at >= statement_timestamp() - %(since)s::interval)
  AND (refused.actual_version < refused.expected_version OR (refused.actual_version IS NULL
       AND NOT EXISTS (SELECT FROM tasks_archive AS archived WHERE archived.id = refused.task_id)))
ORDER BY refused.id
"""

# Another task may have got the id of a lost one, but not its time.
MISSING = """
SELECT asked.id, asked.at
FROM unnest(%(ids)s::bigint[], %(times)s::timestamptz[]) WITH ORDINALITY AS asked (id, at, number)
WHERE NOT EXISTS (SELECT FROM tasks_task AS task
                  WHERE task.id = asked.id AND (asked.at IS NULL OR task.created_at = asked.at))
  AND NOT EXISTS (SELECT FROM tasks_archive AS task
                  WHERE task.id = asked.id AND (asked.at IS NULL OR task.created_at = asked.at))
ORDER BY asked.number
"""


@dataclass(frozen=True)
class Enqueued:
    """A task that an enqueuer was told of: its id, and its `enqueued_at` if that was kept."""

    id: int
    at: datetime | None = None


def lost_claims(connection: Connection, since: timedelta | None = None) -> list[dict[str, Any]]:
    """Return the claims that a worker held and no row had when it reported.

    Each has `id` of the task, `worker`, `at`, the version that was `held`, and the one that was `found`, or None.
    `since`: only what was refused within this time.
    """
    return fetch(connection, LOST_CLAIMS, {"since": since})


def missing(connection: Connection, tasks: Sequence[Enqueued]) -> list[Enqueued]:
    """Return the tasks that are neither in the queue nor in the archive. Ask for some thousands at once."""
    params = {"ids": [task.id for task in tasks], "times": [task.at for task in tasks]}
    return [Enqueued(row["id"], row["at"]) for row in fetch(connection, MISSING, params)]
