"""Delete finished tasks, and the history of other outcomes. Never the audit.

Each table is walked in windows of its primary key; each window is a short transaction that skips locked rows. An index
on the time would slow down every completion. A LIMIT without one would scan the dead rows of all earlier windows. Ids
grow with time, so the first window without anything old is the last.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from importlib import import_module
from itertools import chain
from typing import NamedTuple, Self

from django.db import connection
from psycopg import sql

from tasks.models import FINISHED
from tasks.operations.verb import Progress, go_on, short_waits
from tasks.queue import throughput
from tasks.support import audit, durations
from tasks.support.audit import Change, Who
from tasks.support.database import fetch

WINDOW = 5000

PRUNE_TASKS = """
WITH page AS MATERIALIZED (
    SELECT id, created_at, finished_at FROM tasks_task
    WHERE id > %(after)s::bigint ORDER BY id LIMIT %(window)s::int
), doomed AS MATERIALIZED (
    SELECT task.id FROM tasks_task AS task JOIN page ON page.id = task.id
    WHERE task.status = ANY(%(statuses)s::text[]) AND task.finished_at < statement_timestamp() - %(age)s::interval
    FOR UPDATE OF task SKIP LOCKED
), deleted AS (
    DELETE FROM tasks_task USING doomed WHERE tasks_task.id = doomed.id RETURNING tasks_task.id
)
SELECT (SELECT max(id) FROM page) AS last_id, (SELECT count(*) FROM deleted) AS deleted,
    (SELECT min(least(created_at, finished_at)) FROM page) < statement_timestamp() - %(age)s::interval AS is_old
"""

# Attempts of an unfinished task stay.
PRUNE_ATTEMPTS = """
WITH page AS MATERIALIZED (
    SELECT id, task_id, finished_at FROM tasks_attempt
    WHERE id > %(after)s::bigint ORDER BY id LIMIT %(window)s::int
), doomed AS MATERIALIZED (
    SELECT attempt.id FROM page JOIN tasks_attempt AS attempt ON attempt.id = page.id
    JOIN tasks_task AS task ON task.id = page.task_id
    WHERE page.finished_at < statement_timestamp() - %(age)s::interval
      AND task.status IN ('COMPLETED', 'FAILED', 'CANCELLED')
    FOR UPDATE OF attempt SKIP LOCKED
), deleted AS (
    DELETE FROM tasks_attempt USING doomed WHERE tasks_attempt.id = doomed.id RETURNING tasks_attempt.id
)
SELECT (SELECT max(id) FROM page) AS last_id, (SELECT count(*) FROM deleted) AS deleted,
    (SELECT min(finished_at) FROM page) < statement_timestamp() - %(age)s::interval AS is_old
"""

# Lines of an unfinished task stay, like its attempts.
PRUNE_LINES = """
WITH page AS MATERIALIZED (
    SELECT id, task_id, at FROM tasks_attemptlog WHERE id > %(after)s::bigint ORDER BY id LIMIT %(window)s::int
), doomed AS MATERIALIZED (
    SELECT line.id FROM page JOIN tasks_attemptlog AS line ON line.id = page.id
    LEFT JOIN tasks_task AS task ON task.id = page.task_id
    WHERE page.at < statement_timestamp() - %(age)s::interval
      AND coalesce(task.status, 'COMPLETED') IN ('COMPLETED', 'FAILED', 'CANCELLED')
    FOR UPDATE OF line SKIP LOCKED
), deleted AS (
    DELETE FROM tasks_attemptlog USING doomed WHERE tasks_attemptlog.id = doomed.id RETURNING tasks_attemptlog.id
)
SELECT (SELECT max(id) FROM page) AS last_id, (SELECT count(*) FROM deleted) AS deleted,
    (SELECT min(at) FROM page) < statement_timestamp() - %(age)s::interval AS is_old
"""

# Of a table whose rows need nothing else than to have ended long ago.
PRUNE_ENDED = """
WITH page AS MATERIALIZED (
    SELECT id, {begun} AS begun, {ended} AS ended FROM {table}
    WHERE id > %(after)s::bigint ORDER BY id LIMIT %(window)s::int
), doomed AS MATERIALIZED (
    SELECT old.id FROM page JOIN {table} AS old ON old.id = page.id
    WHERE page.ended < statement_timestamp() - %(age)s::interval FOR UPDATE OF old SKIP LOCKED
), deleted AS (
    DELETE FROM {table} AS old USING doomed WHERE old.id = doomed.id RETURNING old.id
)
SELECT (SELECT max(id) FROM page) AS last_id, (SELECT count(*) FROM deleted) AS deleted,
    (SELECT min(begun) FROM page) < statement_timestamp() - %(age)s::interval AS is_old
"""

# Only minutes that the totals already include: see tasks/queue/throughput.py.
PRUNE_THROUGHPUT = """
WITH page AS MATERIALIZED (
    SELECT id, minute FROM tasks_throughput WHERE id > %(after)s::bigint ORDER BY id LIMIT %(window)s::int
), doomed AS MATERIALIZED (
    SELECT sum.id FROM page JOIN tasks_throughput AS sum ON sum.id = page.id
    WHERE page.minute < statement_timestamp() - %(age)s::interval
      AND (%(is_dry_run)s::boolean OR page.minute <= (SELECT max(folded_until) FROM tasks_throughputtotal))
    FOR UPDATE OF sum SKIP LOCKED
), deleted AS (
    DELETE FROM tasks_throughput USING doomed WHERE tasks_throughput.id = doomed.id RETURNING tasks_throughput.id
)
SELECT (SELECT max(id) FROM page) AS last_id, (SELECT count(*) FROM deleted) AS deleted,
    (SELECT min(minute) FROM page) < statement_timestamp() - %(age)s::interval AS is_old
"""

# A worker stays while a row names it, to trace each claim, completion, attempt and late write (fault F2). There are few
# workers, so all of them are one window.
PRUNE_WORKERS = """
WITH doomed AS MATERIALIZED (
    SELECT worker.id FROM tasks_worker AS worker
    WHERE worker.stopped_at < statement_timestamp() - %(age)s::interval
      AND NOT EXISTS (SELECT FROM tasks_task AS task WHERE task.status = 'PROCESSING' AND task.claimed_by = worker.id)
      AND worker.id <> ALL (ARRAY(SELECT DISTINCT finished_by FROM tasks_task WHERE finished_by IS NOT NULL))
      AND worker.id <> ALL (ARRAY(SELECT DISTINCT worker_id FROM tasks_attempt))
      AND worker.id <> ALL (ARRAY(SELECT DISTINCT worker_id FROM tasks_refusedwrite))
    FOR UPDATE OF worker SKIP LOCKED
), deleted AS (
    DELETE FROM tasks_worker USING doomed WHERE tasks_worker.id = doomed.id RETURNING tasks_worker.id
)
SELECT count(*) AS deleted, false AS is_old, 0 AS last_id FROM deleted
"""

# The latest tick of a schedule stays: it says what came last.
PRUNE_TICKS = """
WITH page AS MATERIALIZED (
    SELECT id, made_at FROM tasks_tick WHERE id > %(after)s::bigint ORDER BY id LIMIT %(window)s::int
), doomed AS MATERIALIZED (
    SELECT tick.id FROM page JOIN tasks_tick AS tick ON tick.id = page.id
    WHERE tick.made_at < statement_timestamp() - %(age)s::interval
      AND EXISTS (SELECT FROM tasks_tick AS later WHERE later.schedule_name = tick.schedule_name AND later.at > tick.at)
    FOR UPDATE OF tick SKIP LOCKED
), deleted AS (
    DELETE FROM tasks_tick USING doomed WHERE tasks_tick.id = doomed.id RETURNING tasks_tick.id
)
SELECT (SELECT max(id) FROM page) AS last_id, (SELECT count(*) FROM deleted) AS deleted,
    (SELECT min(made_at) FROM page) < statement_timestamp() - %(age)s::interval AS is_old
"""

# Fences come from a sequence: they grow even for a name whose row is gone. Names have no order in time, so all of them
# are one window.
PRUNE_LOCKS = """
WITH doomed AS MATERIALIZED (
    SELECT name FROM tasks_lock
    WHERE coalesce(expires_at, released_at) < statement_timestamp() - %(age)s::interval
    FOR UPDATE SKIP LOCKED
), deleted AS (
    DELETE FROM tasks_lock USING doomed WHERE tasks_lock.name = doomed.name RETURNING tasks_lock.name
)
SELECT count(*) AS deleted, false AS is_old, 0 AS last_id FROM deleted
"""

# A rate whose time came long ago may catch up as much as one without a row. A claim locks the row that it takes from,
# and holds back what it does not find. Names have no order in time, so all of them are one window.
PRUNE_BUCKETS = """
WITH doomed AS MATERIALIZED (
    SELECT name FROM tasks_bucket WHERE next_at < statement_timestamp() - %(age)s::interval FOR UPDATE SKIP LOCKED
), deleted AS (
    DELETE FROM tasks_bucket USING doomed WHERE tasks_bucket.name = doomed.name RETURNING tasks_bucket.name
)
SELECT count(*) AS deleted, false AS is_old, 0 AS last_id FROM deleted
"""


class History(NamedTuple):
    """One table of history; `name` is that in the report."""

    name: str
    table: str
    statement: str

    @classmethod
    def of_ended(cls, name: str, table: str, ended: str, begun: str = "") -> Self:
        """Of a table whose rows say in these columns when they ended and began."""
        names = {"table": table, "ended": ended, "begun": begun or ended}
        statement = sql.SQL(PRUNE_ENDED).format(**{part: sql.Identifier(name) for part, name in names.items()})
        return cls(name, table, statement.as_string())


MODULES: list[str] = []  # of other apps
# Workers come last: the rows that named them may have just been deleted.
HISTORY = [
    History("attempts", "tasks_attempt", PRUNE_ATTEMPTS),
    History("lines", "tasks_attemptlog", PRUNE_LINES),
    History.of_ended("refused_writes", "tasks_refusedwrite", "at"),
    History("throughput", "tasks_throughput", PRUNE_THROUGHPUT),
    History.of_ended("command_runs", "tasks_commandrun", "finished_at", "started_at"),
    History("ticks", "tasks_tick", PRUNE_TICKS),
    History.of_ended("bulk_runs", "tasks_bulkrun", "finished_at", "created_at"),
    History("locks", "tasks_lock", PRUNE_LOCKS),
    History("buckets", "tasks_bucket", PRUNE_BUCKETS),
    History("workers", "tasks_worker", PRUNE_WORKERS),
]


def register_history(*modules: str) -> None:
    """Let `prune_history` delete from the tables that these modules list in `HISTORY` too; it alone imports them.

    A statement gets `age`, `after` (the id where the last window ended) and `window` (rows). It returns `last_id`,
    `deleted`, and `is_old`: true if the next window may hold something old.
    """
    MODULES.extend(module for module in modules if module not in MODULES)


def histories() -> list[History]:
    """All tables of history: of other apps, then ours, whose workers come last."""
    return [*chain.from_iterable(import_module(module).HISTORY for module in MODULES), *HISTORY]


def prune_tasks(
    older_than: timedelta,
    who: Who,
    *,
    statuses: Sequence[str] = FINISHED,
    reason: str = "",
    dry_run: bool = False,
    progress: Progress = go_on,
) -> int:
    """Delete tasks that finished longer ago than `older_than`, with their attempts; returns their number.

    Only finished statuses are allowed (ValueError). Locked rows are left for the next time.
    """
    if unfinished := set(statuses) - set(FINISHED):
        raise ValueError(f"Tasks that are {', '.join(sorted(unfinished))} are not finished and are never pruned.")
    names = [str(status) for status in statuses]
    action = f"prune older_than={durations.describe(older_than)} status={','.join(names)}"
    record = partial(audit.record, connection, who, action, [Change(audit.table("tasks_task"))], reason)
    return _walk(PRUNE_TASKS, {"age": older_than, "statuses": names}, record, dry_run, progress)


def prune_history(
    older_than: timedelta, who: Who, *, reason: str = "", dry_run: bool = False, progress: Progress = go_on
) -> dict[str, int]:
    """Delete history older than `older_than`; returns the number of rows of each table, by the names in `histories`.

    Attempts go when their task is finished, stopped workers when no row names them.
    """
    action = f"prune older_than={durations.describe(older_than)}"
    while not dry_run and throughput.fold(connection):
        pass
    deleted = {}
    for name, table, statement in histories():
        record = partial(audit.record, connection, who, action, [Change(audit.table(table))], reason)
        deleted[name] = _walk(statement, {"age": older_than}, record, dry_run, progress)
    return deleted


def _walk(
    statement: str, params: Mapping[str, object], record: Callable[[], None], dry_run: bool, progress: Progress
) -> int:
    """Delete window after window; `record` writes the intervention together with the first deleted rows."""
    total, after, goes_on = 0, 0, True
    while goes_on:
        with short_waits(rollback=dry_run):
            [window] = fetch(connection, statement, {"window": WINDOW, "is_dry_run": dry_run, **params, "after": after})
            if window["deleted"] and not total:
                record()
        total += window["deleted"]
        after = window["last_id"]
        goes_on = progress(total, None) and bool(window["is_old"])
    return total
