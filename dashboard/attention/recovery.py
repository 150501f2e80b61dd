"""Tasks and workers that recovery set aside because the database refuses to change them (tasks/set_aside.py)."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from django.db import connection
from django.utils.translation import gettext as _

from dashboard import links
from tasks import panels
from tasks.database import fetch
from tasks.panels import Line, Look, Severity, Step
from tasks.verdicts.words import command

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
