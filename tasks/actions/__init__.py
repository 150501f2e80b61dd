"""A person's actions on the queue. Pages and commands call the same functions and show the same results.

Every function takes `who` and writes one intervention for each thing that it changes, in the same transaction. With
`dry_run` it does all of it and rolls back. No function waits for a task's locked row.
"""

from tasks.actions.cancel import await_cancelled, cancel
from tasks.actions.chunks import Progress, Selection, short_waits
from tasks.actions.edit import edit
from tasks.actions.enqueue import enqueue
from tasks.actions.prune import prune_history, prune_tasks
from tasks.actions.quarantine import put_back, quarantine
from tasks.actions.queues import configure_queue, pause, resume
from tasks.actions.recover import recover
from tasks.actions.release import NotHanging, release_unstarted
from tasks.actions.requeue import Spread, requeue
from tasks.actions.result import Code, Refusal, Result
from tasks.actions.workers import NoSuchWorker, stop_worker

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
