"""Tasks and workers that recovery set aside because the database refuses to change them (tasks/queue/set_aside.py)."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from django.db import connection
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from dashboard import links
from tasks import panels
from tasks.diagnosis.finding import command
from tasks.panels import AttentionLine, Severity, Snapshot, Step
from tasks.support.database import fetch

MOST = 20

# Failures that no longer matter are left out: the worker has stopped, or it no longer holds the task.
REFUSED = """
SELECT failure.target, failure.task_id, failure.worker_id, failure.error, failure.since
FROM tasks_recoveryfailure AS failure
WHERE CASE WHEN failure.task_id IS NULL
    THEN EXISTS (SELECT FROM tasks_worker WHERE id = failure.worker_id AND stopped_at IS NULL)
    ELSE EXISTS (SELECT FROM tasks_task WHERE id = failure.task_id AND status = 'PROCESSING'
                 AND claimed_by = failure.worker_id) END
ORDER BY failure.since LIMIT %(most)s::int
"""


def refused() -> list[dict[str, Any]]:
    """Current failures of recovery, the oldest first; those of a worker itself have no task."""
    return fetch(connection, REFUSED, {"most": MOST})


@panels.attention
def set_aside(snapshot: Snapshot) -> Iterator[AttentionLine]:
    """Tasks and workers that recovery cannot change."""
    for found in snapshot.once(refused):
        text = _("Recovery cannot judge the worker %(id)s: %(error)s")
        step, url, permission = _("Look at the workers"), links.page("admin:ops_workers"), "tasks.view_worker"
        if found["task_id"] is not None:
            text = _("Task #%(id)d cannot be taken back from its dead worker: %(error)s")
            step, url = _("Look at the task"), links.page("admin:tasks_task_change", found["task_id"])
            permission = "tasks.view_task"
        yield AttentionLine(
            key=f"refused:{found['target']}",
            text=text % {"id": found["task_id"] or found["worker_id"], "error": found["error"]},
            severity=Severity.LOSING,
            why=_(
                "The database refuses the change, by a constraint or a trigger. Everything else is recovered, and this "
                "is tried again from time to time."
            ),
            since=found["since"],
            step=Step(step, url, command("recover_tasks")),
            permission=permission,
        )


# The newest tasks that FAILED or were CANCELLED, from their partial index; then only the FAILED ones among them.
WINDOW, GROUPED, GROUPS = 10_000, 2_000, 20
ATTEMPTS, LATEST = 500, 10

# Ordered by `number`: ordered by id, the planner would walk the primary key backwards to find the task.
FAILED_GROUPS = """
WITH newest AS MATERIALIZED (
    SELECT id, status, task_path, finished_at FROM tasks_task
    WHERE status IN ('FAILED', 'CANCELLED') ORDER BY id DESC LIMIT %(window)s::int
), failed AS MATERIALIZED (
    SELECT id, task_path, finished_at FROM newest WHERE status = 'FAILED' ORDER BY id DESC LIMIT %(grouped)s::int
)
SELECT failed.task_path, coalesce(last.exception_class, '') AS exception_class, count(*) AS number,
    min(failed.finished_at) AS since, max(failed.finished_at) AS latest
FROM failed LEFT JOIN LATERAL (
    SELECT attempt.exception_class FROM tasks_attempt AS attempt
    WHERE attempt.task_id = failed.id ORDER BY attempt.number DESC, attempt.id DESC LIMIT 1
) AS last ON true
GROUP BY 1, 2 ORDER BY count(*) DESC, max(failed.finished_at) DESC LIMIT %(groups)s::int
"""

LATEST_FAILURES = """
WITH newest AS MATERIALIZED (
    SELECT task_id, exception_class, outcome, finished_at FROM tasks_attempt ORDER BY id DESC LIMIT %(attempts)s::int
)
SELECT task.task_path, newest.exception_class, count(*) AS number, min(newest.finished_at) AS since,
    max(newest.finished_at) AS latest
FROM newest JOIN tasks_task AS task ON task.id = newest.task_id
WHERE newest.outcome <> 'released'
GROUP BY 1, 2 ORDER BY max(newest.finished_at) DESC LIMIT %(latest)s::int
"""


@dataclass(frozen=True)
class Group:
    """Failures of one task with one exception; times in the database's clock."""

    task_path: str
    exception_class: str
    number: int
    since: datetime
    latest: datetime

    @property
    def key(self) -> str:
        """A stable name for the page's element."""
        return sha256(f"{self.task_path}:{self.exception_class}".encode()).hexdigest()[:12]

    @property
    def error(self) -> str:
        return self.exception_class.rpartition(".")[2]

    @property
    def failed_tasks(self) -> str:
        """Link to the FAILED tasks of this group."""
        return links.tasks(statuses=("FAILED",), task_paths=(self.task_path,), error=self.exception_class)

    @property
    def all_tasks(self) -> str:
        """Link to all tasks whose latest attempt failed this way, whatever their status is now."""
        return links.tasks(task_paths=(self.task_path,), error=self.exception_class)


def failed_groups() -> list[Group]:
    """FAILED tasks by task and exception, the largest group first (newest GROUPED tasks)."""
    params = {"window": WINDOW, "grouped": GROUPED, "groups": GROUPS}
    return [Group(**row) for row in fetch(connection, FAILED_GROUPS, params)]


def latest_failures() -> list[Group]:
    """Failed attempts by task and exception, the latest first (newest ATTEMPTS attempts)."""
    params = {"attempts": ATTEMPTS, "latest": LATEST}
    return [Group(**row) for row in fetch(connection, LATEST_FAILURES, params)]


@panels.attention
def failed(snapshot: Snapshot) -> Iterator[AttentionLine]:
    """One line for each group of FAILED tasks."""
    for group in snapshot.once(failed_groups):
        text = ngettext(
            "%(task)s failed once: %(error)s.", "%(task)s failed %(number)d times: %(error)s.", group.number
        )
        values = {"task": group.task_path, "number": group.number, "error": group.error or _("no recorded attempt")}
        error = ("--error", group.exception_class) if group.exception_class else ()
        requeue = command("requeue_tasks", "--status", "FAILED", "--task", group.task_path, *error)
        yield AttentionLine(
            key=f"failed:{group.task_path}:{group.exception_class}",
            text=text % values,
            severity=Severity.LOSING,
            why=_("Out of attempts: only a person can run them again."),
            since=group.since,
            size=group.number,
            step=Step(_("Look at them"), group.failed_tasks, requeue),
        )
