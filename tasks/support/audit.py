"""The audit: one append-only row of `tasks_intervention` for each target of each manual action.

A target is `task:4711`, `queue:payouts`, `worker:w7f` or `table:tasks_task`. An action is a verb and its settings:
`edit queue_name=slow priority=5`. The reason is the person's own text, without secrets.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tasks.support import reading
from tasks.support.database import Connection
from tasks.support.redaction import redact

RECORD = """
INSERT INTO tasks_intervention (actor, source, action, target, reason, version_before, version_after)
SELECT %(actor)s::text, %(source)s::text, %(action)s::text, change.target, %(reason)s::text,
    change.version_before, change.version_after
FROM unnest(%(targets)s::text[], %(before)s::int[], %(after)s::int[])
    AS change (target, version_before, version_after)
"""

task = "task:{}".format
queue = "queue:{}".format
limit = "limit:{}".format
worker = "worker:{}".format
lock = "lock:{}".format
backend = "backend:{}".format
command = "command:{}".format  # the runs of a named command
schedule = "schedule:{}".format
table = "table:{}".format  # when there are too many rows to name


@dataclass(frozen=True)
class Who:
    """The person and the source of an action: `Who("anna", "page")`, `Who("root@db1", "command")`."""

    actor: str
    source: Literal["page", "command", "api"]


class Change(NamedTuple):
    """One target of an action, with its version before and after if it has versions."""

    target: str
    version_before: int | None = None
    version_after: int | None = None


def record(connection: Connection, who: Who, action: str, changes: Iterable[Change], reason: str = "") -> None:
    """Write one intervention for each change, in the caller's transaction: both stay, or neither.

    Raises Unreadable unless the reason is one line of at most 1000 characters.
    """
    rows = list(changes)
    params = {
        "actor": reading.clipped(who.actor, reading.LONGEST_NAME),
        "source": who.source,
        "action": reading.clipped(action, reading.LONGEST_ACTION),
        "reason": reading.clipped(redact(reading.reason(reason)), reading.LONGEST_REASON),
        "targets": [reading.clipped(row.target, reading.LONGEST_TARGET) for row in rows],
        "before": [row.version_before for row in rows],
        "after": [row.version_after for row in rows],
    }
    with connection.cursor() as cursor:
        cursor.execute(RECORD, params)
