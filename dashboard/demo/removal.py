"""Remove the demo: only the rows recorded as its own. The audit stays."""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from django.db import connection

from tasks.operations.chunks import short_waits
from tasks.queue import presence
from tasks.support import audit
from tasks.support.audit import Change, Who
from tasks.support.database import fetch

CHUNK = 5000
MOST_COUNTED = 10_000

COUNTS = """
SELECT (SELECT count(*) FROM (SELECT FROM tasks_task AS task JOIN dashboard_demorow AS made ON made.row_id = task.id
                              WHERE made.kind = 'task' LIMIT %(most)s::int) AS t) AS tasks,
    (SELECT count(*) FROM (SELECT FROM orders_order AS shop JOIN dashboard_demorow AS made ON made.row_id = shop.id
                           WHERE made.kind = 'order' LIMIT %(most)s::int) AS o) AS orders,
    (SELECT count(*) FROM tasks_queue
     WHERE name IN (SELECT name FROM dashboard_demorow WHERE kind = 'queue')) AS queues,
    (SELECT count(*) FROM tasks_expectedcommand
     WHERE name IN (SELECT name FROM dashboard_demorow WHERE kind = 'command')) AS commands
"""
HOLDERS = """
SELECT DISTINCT task.claimed_by FROM tasks_task AS task JOIN dashboard_demorow AS made ON made.row_id = task.id
WHERE made.kind = 'task' AND task.status = 'PROCESSING'
"""
# A task that a live worker runs stays until it is done. Attempts are deleted with their task, by the table's foreign
# key.
TASKS = """
WITH doomed AS MATERIALIZED (
    SELECT task.id FROM tasks_task AS task JOIN dashboard_demorow AS made ON made.row_id = task.id
    WHERE made.kind = 'task' AND (task.status <> 'PROCESSING' OR task.claimed_by <> ALL (%(alive)s::text[]))
    LIMIT %(chunk)s::int FOR UPDATE OF task SKIP LOCKED
), forgotten AS (
    DELETE FROM tasks_refusedwrite USING doomed WHERE tasks_refusedwrite.task_id = doomed.id
), unlisted AS (
    DELETE FROM dashboard_demorow AS made USING doomed WHERE made.kind = 'task' AND made.row_id = doomed.id
)
DELETE FROM tasks_task USING doomed WHERE tasks_task.id = doomed.id RETURNING tasks_task.id
"""
ORDERS = """
WITH doomed AS MATERIALIZED (
    SELECT shop.id FROM orders_order AS shop JOIN dashboard_demorow AS made ON made.row_id = shop.id
    WHERE made.kind = 'order' LIMIT %(chunk)s::int FOR UPDATE OF shop SKIP LOCKED
), unlisted AS (
    DELETE FROM dashboard_demorow AS made USING doomed WHERE made.kind = 'order' AND made.row_id = doomed.id
)
DELETE FROM orders_order USING doomed WHERE orders_order.id = doomed.id RETURNING orders_order.id
"""
# A queue of this name with somebody else's tasks keeps its setting and its figures.
OWN_QUEUES = """
SELECT name FROM dashboard_demorow AS made
WHERE kind = 'queue' AND NOT EXISTS (SELECT FROM tasks_task AS task WHERE task.queue_name = made.name)
"""
QUEUES = "DELETE FROM tasks_queue WHERE name = ANY(%(queues)s::text[]) RETURNING name"
COMMANDS = """
DELETE FROM tasks_expectedcommand WHERE name IN (SELECT name FROM dashboard_demorow WHERE kind = 'command')
RETURNING name
"""
THE_REST = (
    "DELETE FROM tasks_commandrun WHERE name IN (SELECT name FROM dashboard_demorow WHERE kind = 'command')",
    "DELETE FROM tasks_throughput WHERE queue_name = ANY(%(queues)s::text[])",
    "DELETE FROM tasks_throughputslot WHERE queue_name = ANY(%(queues)s::text[])",
    """DELETE FROM dashboard_demorow AS made
    WHERE NOT EXISTS (SELECT FROM tasks_task AS task WHERE made.kind = 'task' AND task.id = made.row_id)
      AND NOT EXISTS (SELECT FROM orders_order AS shop WHERE made.kind = 'order' AND shop.id = made.row_id)""",
)


def preview() -> dict[str, int]:
    """The `tasks`, `orders`, `queues` and `commands` that would go; tasks and orders counted up to MOST_COUNTED."""
    found: dict[str, int] = fetch(connection, COUNTS, {"most": MOST_COUNTED})[0]
    return found


def remove(who: Who, *, reason: str = "", dry_run: bool = False) -> dict[str, int]:
    """Delete the demo's rows. Returns the number of `tasks`, `orders`, `queues` and `commands`; the audit names them.

    The director must have ended. Locked rows, and tasks that a live worker runs, are left: call it again.
    """
    if dry_run:
        return preview()
    parameters = {"alive": alive_holders(), "chunk": CHUNK}
    removed = {
        "tasks": _all("tasks_task", TASKS, parameters, who, reason),
        "orders": _all("orders_order", ORDERS, parameters, who, reason),
    }
    queues, commands = ([], []) if is_anything_left() else _names(who, reason)
    return removed | {"queues": len(queues), "commands": len(commands)}


def is_anything_left() -> bool:
    """True if tasks or orders of the demo are left. Its list stays with them, and the ribbon reads the list."""
    counts = preview()
    return bool(counts["tasks"] or counts["orders"])


def alive_holders() -> list[str]:
    """Workers that run tasks of the demo and are not dead."""
    holders = [row["claimed_by"] for row in fetch(connection, HOLDERS)]
    return [state.id for state in presence.states(holders).values() if not state.is_dead] if holders else []


def _all(table: str, statement: str, parameters: Mapping[str, Any], who: Who, reason: str) -> int:
    """Delete in chunks, each a short transaction with an audit entry, until only locked rows are left."""
    total = 0
    while ids := _chunk(table, statement, parameters, who, reason):
        total += len(ids)
    return total


def _chunk(table: str, statement: str, parameters: Mapping[str, Any], who: Who, reason: str) -> list[int]:
    with short_waits():
        ids = [row["id"] for row in fetch(connection, statement, parameters)]
        if ids:
            action = f"demo-remove count={len(ids)} ids={spans(ids)}"
            audit.record(connection, who, action, [Change(audit.table(table))], reason)
    return ids


def _names(who: Who, reason: str) -> tuple[list[str], list[str]]:
    """Delete the queues' settings and the expected commands, with their runs and figures."""
    with short_waits():
        parameters = {"queues": [row["name"] for row in fetch(connection, OWN_QUEUES)]}
        queues = [row["name"] for row in fetch(connection, QUEUES, parameters)]
        commands = [row["name"] for row in fetch(connection, COMMANDS)]
        with connection.cursor() as cursor:
            for statement in THE_REST:
                cursor.execute(statement, parameters)
        targets = [*map(audit.queue, queues), *map(audit.command, commands)]
        audit.record(connection, who, "demo-remove", map(Change, targets), reason)
    return queues, commands


def spans(ids: Iterable[int]) -> str:
    """Numbers as ranges, because the audit cuts long texts.

    >>> spans([7, 1, 2, 3, 9, 10])
    '1-3,7,9-10'
    """
    ordered = sorted(ids)
    starts = [ordered[0], *(later for earlier, later in pairwise(ordered) if later != earlier + 1)]
    ends = [*(earlier for earlier, later in pairwise(ordered) if later != earlier + 1), ordered[-1]]
    return ",".join(
        f"{first}" if first == last else f"{first}-{last}" for first, last in zip(starts, ends, strict=True)
    )
