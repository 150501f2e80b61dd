"""FAILED tasks by kind, queues whose attempts fail often, and what recovery could not change."""

from collections.abc import Iterator
from typing import Any

from django.db import connection
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from dashboard import links
from dashboard.attention import inbox, thresholds
from dashboard.attention.queues import TWELFTH_MINUTES, numbers
from dashboard.failures import Group, failed_groups
from dashboard.numbers import decimal
from tasks import operations, panels
from tasks.diagnosis.finding import command
from tasks.panels import Act, AttentionLine, Severity, Snapshot, Step
from tasks.support.database import fetch
from tasks.support.durations import spoken

MOST, SHOWN = 20, 20

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
            severity=Severity.STOPPED,
            why=_(
                "The database refuses the change, by a constraint or a trigger. Everything else is recovered, and this "
                "is tried again from time to time."
            ),
            since=found["since"],
            step=Step(step, url, command("recover_tasks")),
            permission=permission,
        )


def key_of(group: Group) -> str:
    return f"failed:{group.name}"


def line_of(group: Group) -> AttentionLine:
    """The line of these FAILED tasks, which is also what a person acknowledges on the page of failures."""
    text = ngettext("%(task)s failed once: %(error)s.", "%(task)s failed %(number)d times: %(error)s.", group.number)
    values = {"task": group.task_path, "number": group.number, "error": group.error or _("no recorded attempt")}
    return AttentionLine(
        key=key_of(group),
        text=text % values,
        brief=f"{decimal(group.number)} \u00d7 {values['error']}",
        severity=Severity.LOSING,
        why=_("Retries exhausted; run again by hand."),
        since=group.since,
        size=group.number,
        step=Step(_("Look at them"), group.url, requeue_command(group)),
        act=run_again(group),
    )


def run_again(group: Group) -> Act | None:
    """The button that runs the group again; it asks first, with the number of tasks."""
    url, verb = links.page("admin:tasks_task_all", "requeue"), operations.Requeue
    fields = (("filter", group.tasks.as_query()),)
    return Act(_("Run again…"), url, fields, verb.name, verb.right) if url else None


def requeue_command(group: Group) -> str:
    """The command that runs these tasks again."""
    if group.key:
        return command("requeue_tasks", "--status", "FAILED", "--failure", group.key)
    error = ("--error", group.exception_class) if group.exception_class else ()
    return command("requeue_tasks", "--status", "FAILED", "--task", group.task_path, *error)


def known_by(snapshot: Snapshot, group: Group) -> str:
    """The person who acknowledged these FAILED tasks; empty while nobody has."""
    found = snapshot.once(inbox.acknowledgements).get(panels.name_of(key_of(group)))
    return found.actor if found and inbox.covers(found, group.number, group.since) else ""


def count(snapshot: Snapshot) -> int:
    """The kinds of FAILED tasks that nobody has acknowledged."""
    return sum(not known_by(snapshot, group) for group in snapshot.once(failed_groups))


@panels.attention
def failing(snapshot: Snapshot) -> Iterator[AttentionLine]:
    """Queues of whose latest attempts many failed, retried or not."""
    limits, found = thresholds.values(snapshot), snapshot.once(numbers)
    parts = limits["failed_seconds"] // (60 * TWELFTH_MINUTES)
    for queue, twelfths in sorted(found.failed.items()):
        bad, good = sum(twelfths[-parts:]), sum(found.completed[queue][-parts:])
        if bad + good < limits["failed_attempts"] or 100 * bad < limits["failed_percent"] * (bad + good):
            continue
        text = _("In %(age)s, %(bad)s of %(all)s attempts in the queue %(queue)s failed.")
        numbers_of = {"bad": decimal(bad), "all": decimal(bad + good), "queue": queue}
        url = links.page("admin:ops_failures", queue=queue)
        yield AttentionLine(
            key=f"failing:{queue}",
            text=text % {"age": spoken(60 * TWELFTH_MINUTES * parts), **numbers_of},
            brief=_("%(percent)d %% fail in %(queue)s") % {"percent": 100 * bad // (bad + good), "queue": queue},
            severity=Severity.SLOW,
            why=_("Attempts that are retried count too. If a service is down, pause the queue until it is back."),
            size=bad,
            step=Step(_("Look at the failures"), url, command("pause_queue", queue)),
        )


@panels.attention
def failed(snapshot: Snapshot) -> Iterator[AttentionLine]:
    """One line for each kind of FAILED tasks."""
    return map(line_of, snapshot.once(failed_groups)[:SHOWN])
