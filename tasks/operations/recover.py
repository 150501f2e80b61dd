"""Recover by hand: take back the tasks of dead workers now, also in queues that wait for a person."""

from collections.abc import Iterable
from typing import Any

from django.db import connection as default_connection

from tasks.queue import recovery
from tasks.queue.recovery import Sweep
from tasks.support import audit
from tasks.support.audit import Change, Who
from tasks.support.database import Connection


def recover(
    who: Who,
    *,
    task_ids: Iterable[int] | None = None,
    limit: int | None = None,
    reason: str = "",
    dry_run: bool = False,
) -> Sweep:
    """Take back the PROCESSING tasks of dead workers: all, at most `limit`, or those among `task_ids`.

    Each becomes READY, FAILED if no attempt is left, or CANCELLED if a cancel was requested.
    """

    def record(connection: Connection, rows: list[dict[str, Any]]) -> None:
        changes = [Change(audit.task(row["id"]), row["version_before"], row["version_after"]) for row in rows]
        audit.record(connection, who, "recover", changes, reason)

    return recovery.recover(default_connection, limit=limit, task_ids=task_ids, dry_run=dry_run, record=record)
