"""Tasks that become READY again take their unique key again; refuse those whose key another task has by now."""

from collections.abc import Callable
from functools import partial

from django.db import connection
from django.utils.translation import gettext_lazy

from tasks.models import HOLDS_UNIQUE_KEY, Task, TaskStatus
from tasks.operations.verb import LIMIT_WAITS, Reason, Verb
from tasks.queue.set_aside import Writes, cause
from tasks.support.database import execute

TAKEN = Reason(
    "key_taken",
    gettext_lazy("task #{holder} has its unique key {unique_key} by now; let that one run, or cancel it first"),
)
KEY_BUSY = Reason(
    "key_busy", gettext_lazy("another transaction is taking or leaving its unique key {unique_key}; try again")
)
# An enqueuer's open transaction may hold up one key of a thousand: the search for it tries ten times.
LIMIT_SEARCH = "SET LOCAL lock_timeout = '100ms'"
UNIQUE_VIOLATION, LOCK_NOT_AVAILABLE = "23505", "55P03"
BACK = (TaskStatus.FAILED, TaskStatus.CANCELLED)  # a PROCESSING task has its key, or gives it up: migration 0003


def holders(keys: list[str]) -> dict[str, int]:
    """The id of the task that holds each of these unique keys."""
    held = Task.objects.filter(HOLDS_UNIQUE_KEY, unique_key__in=keys)
    return {key: task_id for key, task_id in held.values_list("unique_key", "id") if key}


def make_ready(verb: Verb, tasks: list[Task], change: Callable[[list[Task]], list[int]]) -> None:
    """Call `change`, which makes these tasks READY, for all but those whose unique key is taken; these are refused.

    Of several tasks with one key the first is changed.
    """
    keyed = {task.id: task for task in tasks if task.unique_key is not None and task.status in BACK}
    if others := [task for task in tasks if task.id not in keyed]:
        change(others)
    if not keyed:
        return
    taken = holders([task.unique_key or "" for task in keyed.values()])
    for task in list(keyed.values()):
        if taken.setdefault(task.unique_key or "", task.id) != task.id:
            verb.result.refused[task.id] = TAKEN.refuse(task, holder=taken[task.unique_key or ""])
            del keyed[task.id]
    # Keys that were taken since are found by the index.
    writes = Writes(connection, is_careful=True)
    execute(connection, LIMIT_SEARCH)
    done = writes.for_tasks(list(keyed), lambda ids: change([keyed[task_id] for task_id in ids]))
    execute(connection, LIMIT_WAITS)
    refuse_late(verb, [task for task in keyed.values() if task.id not in done], writes)


def refuse_late(verb: Verb, tasks: list[Task], writes: Writes) -> None:
    """Refuse tasks that the index refused, and those that the search did not reach. Raises any other error."""
    taken = holders([task.unique_key or "" for task in tasks])
    for task in tasks:
        error = writes.tasks.get(task.id)
        state = getattr(cause(error), "sqlstate", None) if error else LOCK_NOT_AVAILABLE
        if error and state not in (UNIQUE_VIOLATION, LOCK_NOT_AVAILABLE):
            raise error
        holder = taken.get(task.unique_key or "")
        refuse = partial(TAKEN.refuse, holder=holder) if holder and state == UNIQUE_VIOLATION else KEY_BUSY.refuse
        verb.result.refused[task.id] = refuse(task)
