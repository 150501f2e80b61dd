"""Move finished tasks to the archive, `tasks_archive`, and drop its old months.

Each window of ids is one statement, which deletes the rows and writes them to the archive: a kill loses and doubles
nothing, and the next run goes on. Locked rows are left for the next time. A task keeps its attempts and log lines as
columns of its row. Its progress and checkpoint go, as nothing starts from them again. The audit and refused writes name
tasks by id and stay where they are.
"""

from collections.abc import Sequence
from datetime import date, timedelta

from django.db import connection

from tasks.models import FINISHED
from tasks.operations.prune import WINDOW
from tasks.operations.verb import Progress, go_on, short_waits
from tasks.support import audit, durations
from tasks.support.audit import Change, Who
from tasks.support.database import fetch

LOCK = "rowlock-archive"  # one archiver at a time
LEASE_SECONDS = 60

# The months of a window's old tasks, and this month: a row that changes meanwhile ends in it.
MAKE_MONTHS = """
WITH page AS MATERIALIZED (
    SELECT finished_at FROM tasks_task WHERE id > %(after)s::bigint ORDER BY id LIMIT %(window)s::int
)
SELECT rowlock_make_archive(month) FROM (
    SELECT date_trunc('month', finished_at AT TIME ZONE 'UTC')::date AS month FROM page
    WHERE finished_at < statement_timestamp() - %(age)s::interval
    UNION
    SELECT date_trunc('month', statement_timestamp() AT TIME ZONE 'UTC')::date) AS months
"""

# A row that changed between the snapshot and its lock stays: the snapshot would miss its latest attempt.
ARCHIVE = """
WITH page AS MATERIALIZED (
    SELECT id, version, created_at, finished_at FROM tasks_task
    WHERE id > %(after)s::bigint ORDER BY id LIMIT %(window)s::int
), chosen AS MATERIALIZED (
    SELECT task.id FROM tasks_task AS task JOIN page ON page.id = task.id AND page.version = task.version
    WHERE task.status = ANY(%(statuses)s::text[]) AND task.finished_at < statement_timestamp() - %(age)s::interval
    FOR UPDATE OF task SKIP LOCKED
), gone AS (
    DELETE FROM tasks_task USING chosen WHERE tasks_task.id = chosen.id RETURNING tasks_task.*
), archived AS (
    INSERT INTO tasks_archive (id, created_at, run_after, started_at, finished_at, cancel_requested_at, version, rate,
        period_seconds, priority, attempt, max_attempts, concurrency_limit, slot, queue_slot, status, queue_name,
        task_path, args, kwargs, claimed_by, finished_by, ordering_key, unique_key, unique_while, concurrency_key,
        rate_key, return_value, traceparent, attempts, log)
    SELECT id, created_at, run_after, started_at, finished_at, cancel_requested_at, version, rate,
        period_seconds, priority, attempt, max_attempts, concurrency_limit, slot, queue_slot, status, queue_name,
        task_path, args, kwargs, claimed_by, finished_by, ordering_key, unique_key, unique_while, concurrency_key,
        rate_key, return_value, traceparent,
        (SELECT jsonb_agg(to_jsonb(old) ORDER BY old.id) FROM tasks_attempt AS old WHERE old.task_id = gone.id),
        (SELECT jsonb_agg(to_jsonb(line) ORDER BY line.id) FROM tasks_attemptlog AS line WHERE line.task_id = gone.id)
    FROM gone
    RETURNING id
)
SELECT (SELECT max(id) FROM page) AS last_id, (SELECT count(*) FROM archived) AS archived,
    (SELECT min(least(created_at, finished_at)) FROM page) < statement_timestamp() - %(age)s::interval AS is_old
"""

DROP_MONTHS = "SELECT rowlock_drop_archive(%(before)s::date) AS name"


def archive_tasks(
    older_than: timedelta,
    who: Who,
    *,
    statuses: Sequence[str] = FINISHED,
    reason: str = "",
    dry_run: bool = False,
    progress: Progress = go_on,
) -> int:
    """Archive tasks that finished longer ago than `older_than`; returns their number.

    Call it under LOCK. Only finished statuses are allowed (ValueError).
    """
    if unfinished := set(statuses) - set(FINISHED):
        raise ValueError(f"Tasks that are {', '.join(sorted(unfinished))} are not finished and are never archived.")
    names = [str(status) for status in statuses]
    action = f"archive older_than={durations.describe(older_than)} status={','.join(names)}"
    total, goes_on = 0, True
    window = {"after": 0, "window": WINDOW, "age": older_than, "statuses": names}
    while goes_on:
        with short_waits(rollback=dry_run):
            fetch(connection, MAKE_MONTHS, window)
            [moved] = fetch(connection, ARCHIVE, window)
            if moved["archived"] and not total:
                audit.record(connection, who, action, [Change(audit.table("tasks_task"))], reason)
        total += moved["archived"]
        window["after"] = moved["last_id"]
        goes_on = progress(total, None) and bool(moved["is_old"])
    return total


def drop_months(before: date, who: Who, *, reason: str = "", dry_run: bool = False) -> list[str]:
    """Drop the archive's months before that of `before`; returns them, like 2026-11. It takes as long for any size."""
    with short_waits(rollback=dry_run):
        names = [row["name"] for row in fetch(connection, DROP_MONTHS, {"before": before})]
        audit.record(connection, who, "drop", [Change(audit.table(name)) for name in names], reason)
    return [f"{name[-6:-2]}-{name[-2:]}" for name in names]
