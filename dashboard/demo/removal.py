"""Taking the demo away: the rows of its queues, its orders, its cron line. Nothing else, and the audit stays."""

from collections.abc import Callable, Mapping
from typing import Any

from django.db import connection

from dashboard import demo
from tasks import audit, presence
from tasks.actions.chunks import short_waits
from tasks.audit import Change, Who
from tasks.database import fetch

CHUNK = 5000
MOST_COUNTED = 10_000

# By primary key or by an index where there is one; `demo.is_on` keeps all of it from a database without the demo.
COUNTS = """
SELECT (SELECT count(*) FROM (SELECT FROM tasks_task WHERE queue_name ^@ %(prefix)s::text LIMIT %(most)s::int) AS t)
        AS tasks,
    (SELECT count(*) FROM (SELECT FROM orders_order WHERE customer_email LIKE '%%' || %(domain)s::text
                           LIMIT %(most)s::int) AS o) AS orders,
    (SELECT count(*) FROM tasks_queue WHERE name ^@ %(prefix)s::text) AS queues,
    (SELECT count(*) FROM tasks_expectedcommand WHERE name ^@ %(prefix)s::text) AS commands
"""
HOLDERS = """
SELECT DISTINCT claimed_by FROM tasks_task
WHERE status = 'PROCESSING' AND queue_name ^@ %(prefix)s::text AND claimed_by IS NOT NULL
"""
# What a live worker is at stays until it is done. Attempts go with their task, by the table's own rule.
TASKS = """
WITH doomed AS MATERIALIZED (
    SELECT id FROM tasks_task
    WHERE queue_name ^@ %(prefix)s::text
      AND (status <> 'PROCESSING' OR claimed_by <> ALL (%(alive)s::text[]))
    LIMIT %(chunk)s::int FOR UPDATE SKIP LOCKED
), forgotten AS (
    DELETE FROM tasks_refusedwrite USING doomed WHERE tasks_refusedwrite.task_id = doomed.id
)
DELETE FROM tasks_task USING doomed WHERE tasks_task.id = doomed.id
"""
ORDERS = """
WITH doomed AS MATERIALIZED (
    SELECT id FROM orders_order WHERE customer_email LIKE '%%' || %(domain)s::text
    LIMIT %(chunk)s::int FOR UPDATE SKIP LOCKED
)
DELETE FROM orders_order USING doomed WHERE orders_order.id = doomed.id
"""
SMALL = {
    "queues": "DELETE FROM tasks_queue WHERE name ^@ %(prefix)s::text",
    "commands": "DELETE FROM tasks_expectedcommand WHERE name ^@ %(prefix)s::text",
    "runs": "DELETE FROM tasks_commandrun WHERE name ^@ %(prefix)s::text",
    "throughput": "DELETE FROM tasks_throughput WHERE queue_name ^@ %(prefix)s::text",
    "half_hours": "DELETE FROM tasks_throughputslot WHERE queue_name ^@ %(prefix)s::text",
}


def preview() -> dict[str, int]:
    """How many `tasks`, `orders`, `queues` and `commands` would go; tasks and orders counted to ten thousand."""
    found: dict[str, int] = fetch(connection, COUNTS, {**_parameters(), "most": MOST_COUNTED})[0]
    return found


def remove(who: Who, *, reason: str = "", dry_run: bool = False) -> dict[str, int]:
    """Deletes the demo's rows; how many `tasks`, `orders`, `queues` and `commands`.

    The director must have ended. Rows that somebody holds, and tasks that a live worker is at, are left: call it again.
    """
    if dry_run:
        return preview()
    parameters = {**_parameters(), "alive": alive_holders(), "chunk": CHUNK}
    removed = dict.fromkeys(SMALL, 0) | {"tasks": _all(TASKS, parameters), "orders": _all(ORDERS, parameters)}
    with short_waits():
        if not is_anything_left():
            removed |= {name: _execute(statement, parameters) for name, statement in SMALL.items()}
        if any(removed.values()):
            audit.record(connection, who, "demo-remove", [Change(audit.queue(demo.REPORTS))], reason)
    return {name: removed[name] for name in ("tasks", "orders", "queues", "commands")}


def is_anything_left() -> bool:
    """Whether tasks or orders of the demo are there; its queues stay with them, and by those the ribbon knows of it."""
    counts = preview()
    return bool(counts["tasks"] or counts["orders"])


def alive_holders() -> list[str]:
    """The workers that are at tasks of the demo and are not dead."""
    holders = [row["claimed_by"] for row in fetch(connection, HOLDERS, _parameters())]
    return [state.id for state in presence.states(holders).values() if not state.is_dead] if holders else []


def _all(statement: str, parameters: Mapping[str, Any]) -> int:
    """Chunk by chunk, each a short transaction, until nothing is left that nobody holds."""
    total = 0
    while deleted := _in_short_transaction(lambda: _execute(statement, parameters)):
        total += deleted
    return total


def _in_short_transaction(work: Callable[[], int]) -> int:
    with short_waits():
        return work()


def _execute(statement: str, parameters: Mapping[str, Any]) -> int:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return int(cursor.rowcount)


def _parameters() -> dict[str, str]:
    return {"prefix": demo.PREFIX, "domain": demo.DOMAIN}
