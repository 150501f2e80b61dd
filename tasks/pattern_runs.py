"""Runs of registered patterns that a person asks for: one at a time for each pattern, in the background, watched."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.db import connection, transaction

from tasks import audit
from tasks.audit import Change, Who
from tasks.declaration import PostgresTask
from tasks.models import Task
from tasks.patterns import Pattern
from tasks.tasks import run_registered_pattern

COUNT_CAP = 10_000

ONE_AT_A_TIME = """
SELECT pg_advisory_xact_lock(hashtext('rowlock:pattern:' || current_schema()), hashtext(%(name)s::text))
"""


class Asked(NamedTuple):
    """The task that was asked for; not `is_new` when an earlier one has not ended yet."""

    task_id: int
    is_new: bool


@dataclass(frozen=True)
class Progress:
    """How far a run is: its task, and how many rows still meet the criteria (`is_capped`: more than `left`)."""

    task: Task
    left: int
    is_capped: bool

    @property
    def is_over(self) -> bool:
        return self.task.finished_at is not None


def ask(pattern: Pattern, options: Mapping[str, Any], who: Who) -> Asked:
    """Enqueue a run until nothing is left, unless one waits or runs already: two clicks are one run.

    `options` are the choices and `limit`. The intervention stays with the task, or neither does.
    """
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(ONE_AT_A_TIME, {"name": pattern.name})
        if earlier := unfinished(pattern):
            return Asked(earlier.pk, is_new=False)
        task = PostgresTask.of(run_registered_pattern).using(ordering_key=key_of(pattern))
        result = task.enqueue(pattern.name, until_empty=True, **options)
        chosen = " ".join(f"{name}={value}" for name, value in sorted(options.items()) if value is not None)
        change = Change(audit.table(pattern.model._meta.db_table))
        audit.record(connection, who, f"{pattern.action} {chosen}".strip(), [change])
    return Asked(int(result.id), is_new=True)


def unfinished(pattern: Pattern) -> Task | None:
    """The run of this pattern that waits or runs, found by its key."""
    return Task.objects.unfinished().filter(ordering_key=key_of(pattern)).order_by("id").first()


def progress(pattern: Pattern, task_id: int) -> Progress | None:
    """How far that run is; None for a task that is no run of this pattern, or is gone."""
    task = Task.objects.filter(pk=task_id, ordering_key=key_of(pattern)).first()
    if task is None:
        return None
    left = pattern.queryset.order_by()[: COUNT_CAP + 1].count()
    return Progress(task, min(left, COUNT_CAP), left > COUNT_CAP)


def key_of(pattern: Pattern) -> str:
    """Runs of one pattern share an ordering key, and an index finds those that have not ended."""
    return f"pattern:{pattern.name}"
