"""The statements behind the verdict on a task, for those who want to look for themselves."""

from tasks import presence
from tasks.locking import rowlocks
from tasks.models import Task, TaskStatus
from tasks.verdicts import facts


def behind(task: Task) -> list[str]:
    """The statements that this task's verdict was decided on, as they were sent; `%(…)s` stands for its values."""
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
