"""Bulk runs: requested once, watched and stopped. A worker carries them out: tasks/bulk/carry.py."""

from dataclasses import dataclass, replace

from django.db import connection

from tasks import actions, audit
from tasks.actions.chunks import short_waits
from tasks.audit import Change, Who
from tasks.bulk import forms
from tasks.bulk.instruction import Settings
from tasks.bulk.models import BulkRun
from tasks.database import fetch
from tasks.declaration import PostgresTask
from tasks.list_filter import ListFilter
from tasks.models import Task, TaskStatus
from tasks.redaction import redact
from tasks.tasks import run_bulk_action

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

    submitted = forms.once(token, create)
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
        actions.cancel([task.pk] if task else [], who, reason=reason)
        fetch(connection, FINISH, {"id": run.pk})
    return True
