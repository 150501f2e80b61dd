"""A person's actions on the queue. Pages and commands call the same functions and show the same results.

Every function takes `who` and writes one intervention for each thing that it changes, in the same transaction. With
`dry_run` it does all of it and rolls back. No function waits for a task's locked row.
"""

from tasks.operations.cancel import await_cancelled, cancel
from tasks.operations.chunks import Code, Progress, Refusal, Result, Selection, short_waits
from tasks.operations.edit import edit
from tasks.operations.enqueue import enqueue
from tasks.operations.prune import prune_history, prune_tasks
from tasks.operations.quarantine import put_back, quarantine
from tasks.operations.queues import configure_queue, pause, resume
from tasks.operations.recover import recover
from tasks.operations.release import NotHanging, release_unstarted
from tasks.operations.requeue import Spread, requeue
from tasks.operations.workers import NoSuchWorker, stop_worker

__all__ = [
    "Code",
    "NoSuchWorker",
    "NotHanging",
    "Progress",
    "Refusal",
    "Result",
    "Selection",
    "Spread",
    "await_cancelled",
    "cancel",
    "configure_queue",
    "edit",
    "enqueue",
    "pause",
    "prune_history",
    "prune_tasks",
    "put_back",
    "quarantine",
    "recover",
    "release_unstarted",
    "requeue",
    "resume",
    "short_waits",
    "stop_worker",
]
