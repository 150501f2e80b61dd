"""The queue's own tasks."""

from typing import Any

from tasks import patterns
from tasks.compat import task


@task()
def run_registered_pattern(name: str, **options: Any) -> dict[str, Any]:
    """One run of a registered pattern, as its button asks for it; gives the report.

    Not for workers with `--strategy pessimistic`, whose transaction spans the task: the run refuses to begin in one.
    """
    return patterns.get(name).run(**options).as_dict()
