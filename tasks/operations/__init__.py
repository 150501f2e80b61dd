"""A person's actions on the queue. Pages and commands call the same functions and show the same results.

Every function takes `who` and writes one intervention for each thing that it changes, in the same transaction. With
`dry_run` it does all of it and rolls back. No function waits for a task's locked row, and none for more than two
seconds for a lock on a whole table.
"""

from tasks.operations.archive import archive_tasks, drop_months
from tasks.operations.archived import run_again
from tasks.operations.cancel import Cancel, await_cancelled, cancel
from tasks.operations.edit import Edit, edit
from tasks.operations.enqueue import enqueue
from tasks.operations.prune import prune_history, prune_tasks
from tasks.operations.quarantine import PutBack, Quarantine, quarantine
from tasks.operations.queues import pause, resume, set_limit, set_objective, set_queue_limit
from tasks.operations.recover import Recover, recover
from tasks.operations.requeue import Requeue, requeue
from tasks.operations.verb import Progress, Result, Selection, Settings, Verb, short_waits
from tasks.operations.workers import NoSuchWorker, NotHanging, release_unstarted, stop_worker

# Verbs on tasks in the order of their buttons, destructive ones last.
VERBS: dict[str, type[Verb]] = {verb.name: verb for verb in (Recover, Requeue, Edit, PutBack, Quarantine, Cancel)}

__all__ = [
    "VERBS",
    "NoSuchWorker",
    "NotHanging",
    "Progress",
    "Result",
    "Selection",
    "Settings",
    "Verb",
    "archive_tasks",
    "await_cancelled",
    "cancel",
    "drop_months",
    "edit",
    "enqueue",
    "pause",
    "prune_history",
    "prune_tasks",
    "quarantine",
    "recover",
    "release_unstarted",
    "requeue",
    "resume",
    "run_again",
    "set_limit",
    "set_objective",
    "set_queue_limit",
    "short_waits",
    "stop_worker",
]
