"""The queue's own tasks."""

from typing import Any

from tasks import patterns
from tasks.compat import task
from tasks.operations import bulk

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
