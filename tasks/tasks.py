"""The queue's own tasks."""

from typing import Any

from django.utils.translation import gettext_lazy

from tasks import operations, patterns
from tasks.framework.decorator import task
from tasks.operations import bulk
from tasks.operations.schedules import Offer, register_maintenance
from tasks.support import durations
from tasks.support.audit import Who

# Its own queue, at the highest priority: the bulk action may be needed to end a flood of tasks.
BULK_QUEUE, BULK_PRIORITY = "rowlock", 100


@task()
def run_registered_pattern(name: str, **options: Any) -> dict[str, Any]:
    """Run a registered pattern, as requested by its button; returns the report.

    Not for workers with `--strategy pessimistic`, whose transaction spans the task: the run refuses to begin in one.
    """
    return patterns.get(name).run(**options).as_dict()


@task(queue_name=BULK_QUEUE, priority=BULK_PRIORITY)
def run_bulk_action(run_id: int) -> dict[str, int]:
    """Run a bulk action that a page requested; returns its numbers."""
    return bulk.in_own_session(bulk.carry_out, run_id)


@task(queue_name=BULK_QUEUE)
def prune_tasks(older_than: str = "30d") -> dict[str, int]:
    """Delete finished tasks of this age, like the command; returns their number."""
    age, who = durations.parse(older_than), Who("schedule prune-tasks", "command")
    return bulk.in_own_session(lambda _: {"deleted": operations.prune_tasks(age, who)}, 0)


@task(queue_name=BULK_QUEUE)
def prune_history(older_than: str = "90d") -> dict[str, int]:
    """Delete history of this age, like the command; returns the rows of each table."""
    age, who = durations.parse(older_than), Who("schedule prune-history", "command")
    return bulk.in_own_session(lambda _: operations.prune_history(age, who), 0)


for offer in (
    Offer(
        "prune-tasks", prune_tasks.module_path, gettext_lazy("Delete finished tasks older than 30 days"),
        "15 3 * * *", {"older_than": "30d"},
    ),
    Offer(
        "prune-history", prune_history.module_path, gettext_lazy("Delete history older than 90 days"),
        "45 3 * * 0", {"older_than": "90d"},
    ),
):  # fmt: skip
    register_maintenance(offer)
