"""The queue's own tasks."""

from typing import Any

from tasks import patterns
from tasks.bulk import carry
from tasks.compat import task

# A queue of its own, and before everything else: the bulk action may be what ends a flood of tasks.
BULK_QUEUE, BULK_PRIORITY = "rowlock", 100


@task()
def run_registered_pattern(name: str, **options: Any) -> dict[str, Any]:
    """One run of a registered pattern, as its button asks for it; gives the report.

    Not for workers with `--strategy pessimistic`, whose transaction spans the task: the run refuses to begin in one.
    """
    return patterns.get(name).run(**options).as_dict()


@task(queue_name=BULK_QUEUE, priority=BULK_PRIORITY)
def run_bulk_action(run_id: int) -> dict[str, int]:
    """One action on everything that matched a filter on a page; gives its numbers."""
    return carry.in_own_session(carry.carry_out, run_id)
