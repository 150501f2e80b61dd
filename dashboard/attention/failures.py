"""Tasks and workers that recovery set aside because the database refuses to change them (tasks/queue/set_aside.py)."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

from django.db import connection
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from dashboard import links
from tasks import panels
from tasks.diagnosis.finding import command
from tasks.panels import Line, Look, Severity, Step
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


@dataclass(frozen=True)
class Refused:
    """A task (or, without one, a worker) that recovery cannot change, with the database's error."""

    target: str
    task_id: int | None
    worker_id: str
    error: str
    since: datetime


def refused() -> list[Refused]:
    """Current failures, the oldest first."""
    return [Refused(**row) for row in fetch(connection, REFUSED, {"most": MOST})]


@panels.attention
def set_aside(look: Look) -> Iterator[Line]:
    for found in look.once(refused):
        yield task_line(found) if found.task_id is not None else worker_line(found)


def task_line(found: Refused) -> Line:
    told = {"id": found.task_id, "error": found.error}
    return Line(
        key=f"refused:{found.target}",
        text=_("Task #%(id)d cannot be taken back from its dead worker: %(error)s") % told,
        severity=Severity.LOSING,
        why=why(),
        since=found.since,
        step=Step(
            _("Look at the task"), links.page("admin:tasks_task_change", found.task_id), command("recover_tasks")
        ),
    )


def worker_line(found: Refused) -> Line:
    return Line(
        key=f"refused:{found.target}",
        text=_("Recovery cannot judge the worker %(id)s: %(error)s") % {"id": found.worker_id, "error": found.error},
        severity=Severity.LOSING,
        why=why(),
        since=found.since,
        step=Step(_("Look at the workers"), links.page("admin:ops_workers"), command("recover_tasks")),
        permission="tasks.view_worker",
    )


def why() -> str:
    return _(
        "The database refuses the change, by a constraint or a trigger. Everything else is recovered, and this is "
        "tried again from time to time."
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
def failed(look: Look) -> Iterator[Line]:
    """One line for each group of FAILED tasks."""
    for group in look.once(failed_groups):
        yield failed_line(group)


def failed_line(group: Group) -> Line:
    told = {"task": group.task_path, "number": group.number, "error": group.error or _("no recorded attempt")}
    text = ngettext("%(task)s failed once: %(error)s.", "%(task)s failed %(number)d times: %(error)s.", group.number)
    conditions = ["--status", "FAILED", "--task", group.task_path]
    if group.exception_class:
        conditions += ["--error", group.exception_class]
    return Line(
        key=f"failed:{group.task_path}:{group.exception_class}",
        text=text % told,
        severity=Severity.LOSING,
        why=_("Out of attempts: nothing runs them again but a person."),
        since=group.since,
        size=group.number,
        step=Step(_("Look at them"), group.failed_tasks, command("requeue_tasks", *conditions)),
    )
