"""The SQL statements behind a task's verdict, for people who want to check."""

from tasks import presence
from tasks.locking import rowlocks
from tasks.models import Task, TaskStatus
from tasks.verdicts import facts


def behind(task: Task) -> list[str]:
    """The statements that decided this task's verdict, as they were sent; `%(…)s` are their parameters."""
    found = [rowlocks.statement_of(Task)]
    if task.status == TaskStatus.READY:
        found += [facts.POSITIONS, presence.STATES]
    if task.status == TaskStatus.PROCESSING:
        found += [presence.STATES, facts.SESSIONS]
    if task.status == TaskStatus.FAILED:
        found.append(facts.ERRORS)
    if task.status == TaskStatus.CANCELLED:
        found.append(facts.CANCELLERS)
    if task.ordering_key is not None and task.finished_at is None:
        found.append(facts.KEYS)
    return [statement.strip() for statement in found]
