"""What a database has forgotten, as after a failover to a standby that lacked the last commits.

It cannot know that by itself. Two witnesses are outside: a worker that held a claim which is in no row, and an enqueuer
that kept the ids of its tasks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tasks.support.database import Connection, fetch

# A version only rises, so a lower one is a former state of the row. Where none was found and the archive has none, the
# row was lost, or deleted while its worker was silent.
FORGOTTEN = """
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


def forgotten(connection: Connection, since: timedelta | None = None) -> list[dict[str, Any]]:
    """Claims that a worker held and the database did not know when the worker reported.

    Each with `id` of the task, `worker`, `at`, the version that was `held`, and the one that was `found`, or None.
    `since`: only what was refused within this time.
    """
    return fetch(connection, FORGOTTEN, {"since": since})


def missing(connection: Connection, tasks: Sequence[Enqueued]) -> list[Enqueued]:
    """Those that are neither in the queue nor in the archive: lost, or pruned. Ask for some thousands at once."""
    params = {"ids": [task.id for task in tasks], "times": [task.at for task in tasks]}
    return [Enqueued(row["id"], row["at"]) for row in fetch(connection, MISSING, params)]
