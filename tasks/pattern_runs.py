"""Background runs of registered patterns that a person starts: one at a time for each pattern."""

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
    """The task of the run; not `is_new` if an earlier run has not ended yet."""

    task_id: int
    is_new: bool


@dataclass(frozen=True)
class Progress:
    """The progress of a run: its task, and the rows that still meet the criteria (`is_capped`: more than `left`)."""

    task: Task
    left: int
    is_capped: bool

    @property
    def is_over(self) -> bool:
        return self.task.finished_at is not None


def ask(pattern: Pattern, options: Mapping[str, Any], who: Who) -> Asked:
    """Enqueue a run until no row is left, unless one waits or runs: two clicks are one run.

    `options` are the choices and `limit`. Task and intervention commit together.
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
    """The waiting or running run of this pattern, found by its ordering key."""
    return Task.objects.unfinished().filter(ordering_key=key_of(pattern)).order_by("id").first()


def progress(pattern: Pattern, task_id: int) -> Progress | None:
    """The progress of that run; None if the task is gone or no run of this pattern."""
    task = Task.objects.filter(pk=task_id, ordering_key=key_of(pattern)).first()
    if task is None:
        return None
    left = pattern.queryset.order_by()[: COUNT_CAP + 1].count()
    return Progress(task, min(left, COUNT_CAP), left > COUNT_CAP)


def key_of(pattern: Pattern) -> str:
    """The shared ordering key of a pattern's runs, by which an index finds unfinished ones."""
    return f"pattern:{pattern.name}"
