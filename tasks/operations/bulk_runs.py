"""Let `prune_history` delete bulk runs that are over."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from django.db import connection

from tasks import operations
from tasks.diagnosis.finding import command
from tasks.framework.declaration import PostgresTask
from tasks.models import BulkRun, Task, TaskStatus
from tasks.operations.bulk import Settings
from tasks.operations.chunks import short_waits
from tasks.operations.filters import ListFilter
from tasks.operations.prune import History
from tasks.support import audit, durations
from tasks.support.audit import Change, Who
from tasks.support.database import fetch
from tasks.support.redaction import redact
from tasks.tasks import run_bulk_action

PRUNE_RUNS = """
WITH page AS MATERIALIZED (
    SELECT id, created_at FROM tasks_bulkrun WHERE id > %(after)s::bigint ORDER BY id LIMIT %(window)s::int
), doomed AS MATERIALIZED (
    SELECT run.id FROM page JOIN tasks_bulkrun AS run ON run.id = page.id
    WHERE run.finished_at < statement_timestamp() - %(age)s::interval FOR UPDATE OF run SKIP LOCKED
), deleted AS (
    DELETE FROM tasks_bulkrun USING doomed WHERE tasks_bulkrun.id = doomed.id RETURNING tasks_bulkrun.id
)
SELECT (SELECT max(id) FROM page) AS last_id, (SELECT count(*) FROM deleted) AS deleted,
    (SELECT min(created_at) FROM page) < statement_timestamp() - %(age)s::interval AS is_old
"""

HISTORY = History("bulk_runs", "tasks_bulkrun", PRUNE_RUNS)


# A second click waits here until the first commits, then finds its row.
TAKE = "INSERT INTO tasks_submittedform (token) VALUES (%(token)s::text) ON CONFLICT DO NOTHING RETURNING token"
KEEP = "UPDATE tasks_submittedform SET target = %(target)s::text WHERE token = %(token)s::text RETURNING token"
FIND = "SELECT target FROM tasks_submittedform WHERE token = %(token)s::text"
FORGET = """
DELETE FROM tasks_submittedform WHERE token IN (
    SELECT token FROM tasks_submittedform WHERE at < statement_timestamp() - interval '1 day' LIMIT 100
    FOR UPDATE SKIP LOCKED)
RETURNING token
"""
LONGEST_TOKEN = 100


class Submitted(NamedTuple):
    """The result of a form; not `is_new` if it had been carried out before."""

    target: str
    is_new: bool


def new_token() -> str:
    """A random value for a form's hidden field."""
    return secrets.token_urlsafe(16)


def is_token(text: str) -> bool:
    """True if `new_token` can have made this."""
    return 16 <= len(text) <= LONGEST_TOKEN and text.isascii() and text.isprintable()


def once(token: str, work: Callable[[], str]) -> Submitted:
    """Do the work, which returns its target, in one transaction with the token; a known token does nothing.

    A second click waits at most 2 s for the first, then fails with 55P03.
    """
    with short_waits():
        if not fetch(connection, TAKE, {"token": token}):
            return Submitted(fetch(connection, FIND, {"token": token})[0]["target"], is_new=False)
        target = work()
        fetch(connection, KEEP, {"token": token, "target": target})
        fetch(connection, FORGET)
    return Submitted(target, is_new=True)


COMMANDS = {
    "recover": ("recover_tasks",),
    "requeue": ("requeue_tasks",),
    "edit": ("edit_tasks",),
    "quarantine": ("quarantine_tasks",),
    "put_back": ("quarantine_tasks", "--undo"),
    "cancel": ("cancel_tasks",),
}


def command_of(action: str, chosen: ListFilter, settings: Settings) -> str:
    """The command line for these tasks; `recover_tasks` takes no filter, and recovers from every dead worker."""
    subject = [] if action == "recover" else filter_words(chosen)
    return command(*COMMANDS[action], *subject, *settings_words(action, settings))


def filter_words(chosen: ListFilter) -> list[str]:
    """Ids and options that select the same tasks."""
    pairs = [
        *(("--status", status) for status in chosen.statuses),
        *(("--queue", name) for name in chosen.queue_names),
        *(("--task", path) for path in chosen.task_paths),
        ("--error", chosen.error),
        ("--older-than", durations.describe(chosen.older_than) if chosen.older_than is not None else ""),
        ("--text", chosen.text),
        ("--ordering-key", chosen.ordering_key),
        ("--worker", chosen.worker_id),
    ]
    return [*map(str, chosen.ids), *(word for pair in pairs if pair[1] for word in pair)]


def settings_words(action: str, settings: Settings) -> list[str]:
    """Options for the settings of this action."""
    own: dict[str, list[tuple[str, object]]] = {
        "edit": [
            ("--set-queue", settings.queue_name),
            ("--set-priority", settings.priority),
            ("--set-run-after", settings.run_after.isoformat() if settings.run_after else None),
        ],
        "requeue": [("--spread", f"{settings.spread_minutes}m" if settings.spread_minutes else None)],
    }
    pairs = [*own.get(action, []), ("--reason", settings.reason or None)]
    words = [word for name, value in pairs if value is not None for word in (name, str(value))]
    return [*(["--force"] if settings.force and action == "requeue" else []), *words]


STOP = """
UPDATE tasks_bulkrun SET stop_requested_at = clock_timestamp()
WHERE id = %(id)s::bigint AND finished_at IS NULL AND stop_requested_at IS NULL RETURNING task_id
"""
FINISH = """
UPDATE tasks_bulkrun SET finished_at = coalesce(finished_at, clock_timestamp()) WHERE id = %(id)s::bigint RETURNING id
"""


@dataclass(frozen=True)
class Asked:
    """The run that a form requested; not `is_new` if an earlier click did."""

    run_id: int
    is_new: bool


def ask(action: str, chosen: ListFilter, upto: int, settings: Settings, who: Who, token: str) -> Asked:
    """Enqueue a bulk run, once for each token. Run, task and intervention share one transaction."""

    def create() -> str:
        kept = replace(settings, reason=redact(settings.reason))
        run = BulkRun.objects.create(
            action=action, options=kept.as_json(), filter=chosen.as_query(), upto=upto, actor=who.actor
        )
        result = PostgresTask.of(run_bulk_action).enqueue(run.pk)
        BulkRun.objects.filter(pk=run.pk).update(task_id=int(result.id))
        told = f"{action} all {run.filter or 'tasks'} up to #{upto} (bulk run {run.pk})"
        audit.record(connection, who, told, [Change(audit.table("tasks_task"))], settings.reason)
        return str(run.pk)

    submitted = once(token, create)
    return Asked(int(submitted.target), submitted.is_new)


def stop(run: BulkRun, who: Who, *, reason: str = "", dry_run: bool = False) -> bool:
    """End the run after the current chunk; changes stay. False if it is over or already stopped."""
    with short_waits(rollback=dry_run):
        stopped = fetch(connection, STOP, {"id": run.pk})
        if stopped:
            audit.record(connection, who, f"stop bulk run {run.pk}", [Change(audit.table("tasks_task"))], reason)
    if not stopped or dry_run:
        return bool(stopped)
    task = Task.objects.filter(pk=stopped[0]["task_id"]).first()
    if task is None or task.status != TaskStatus.PROCESSING:
        operations.cancel([task.pk] if task else [], who, reason=reason)
        fetch(connection, FINISH, {"id": run.pk})
    return True
