"""An archived task: the verdict on it, and running it again as a new task."""

from dataclasses import replace

from django.db import connection
from django.utils.translation import gettext as _

from tasks.diagnosis import Facts, Finding, decide, gather
from tasks.diagnosis.finding import command
from tasks.exceptions import InternalTask, NotArchived, RowlockError
from tasks.framework import declaration
from tasks.framework.enqueue import LOCK_KEYS
from tasks.models import ArchivedTask, Attempt, Task
from tasks.operations.enqueue import registered
from tasks.operations.unique import holders
from tasks.operations.verb import short_waits
from tasks.support import audit, reading
from tasks.support.audit import Change, Who
from tasks.support.database import execute, fetch

# The arguments stay as they are stored, encrypted ones too. A unique key that another task has by now is kept by it.
RUN_AGAIN = """
INSERT INTO tasks_task (task_path, queue_name, priority, args, kwargs, max_attempts, ordering_key, unique_key,
    unique_while, concurrency_key, concurrency_limit, rate_key, rate, period_seconds)
SELECT task_path, queue_name, priority, args, kwargs, %(max_attempts)s::smallint, ordering_key, unique_key,
    CASE unique_while WHEN 'b' THEN 'q' ELSE unique_while END, concurrency_key, concurrency_limit, rate_key, rate,
    period_seconds
FROM tasks_archive WHERE id = %(id)s::bigint AND finished_at = %(finished_at)s::timestamptz
ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (
    (status = 'READY' AND unique_while IN ('q', 'a')) OR (status = 'PROCESSING' AND unique_while = 'a'))
DO NOTHING
RETURNING id
"""


def run_again(task_id: int, who: Who, *, reason: str = "", dry_run: bool = False) -> int:
    """Enqueue a new task with the call, queue and keys of an archived one; returns its id. The audit names both.

    Raises NotArchived, UnknownTask, InternalTask, Unreadable for a queue of the demo, and RowlockError if another task
    has its unique key.
    """
    archived = ArchivedTask.find(task_id)
    if archived is None:
        raise NotArchived(_("No archived task has the id %(id)d.") % {"id": task_id})
    if declaration.is_internal(archived.task_path):
        raise InternalTask
    task = registered(archived.task_path)
    reading.destination(archived.queue_name)
    row = {"id": archived.pk, "finished_at": archived.finished_at, "max_attempts": task.attempts_allowed()}
    with short_waits(rollback=dry_run):
        if task.ordered_by_commit and archived.ordering_key:
            execute(connection, LOCK_KEYS, {"keys": [archived.ordering_key]})
        made = fetch(connection, RUN_AGAIN, row)
        if not made:
            raise RowlockError(_taken(archived.unique_key or ""))
        new_id: int = made[0]["id"]
        audit.record(connection, who, f"enqueue archived={task_id}", [Change(audit.task(new_id))], reason)
        audit.record(connection, who, f"run_again new={new_id}", [Change(audit.task(task_id))], reason)
    return new_id


def _taken(key: str) -> str:
    values = {"key": key, "id": holders([key]).get(key, "?")}
    return _("Task #%(id)s has its unique key %(key)s: let that one run, or cancel it first.") % values


def judge(task: Task, attempts: list[Attempt]) -> tuple[Facts, Finding]:
    """The verdict on an archived task, given its attempts, newest first, with the command that runs it again."""
    error = attempts[0].exception_class if attempts else ""
    facts = replace(gather([task]), errors={task.pk: error})
    finding = decide(task, facts)
    return facts, replace(finding, command=finding.command and again(task.pk))


def again(task_id: int) -> str:
    """The command that runs an archived task again."""
    return command("enqueue_task", "--archived", str(task_id))
