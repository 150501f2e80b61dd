"""The tables of the queue, of the locks and of what operators did. The contract fixes each column's meaning."""

from tasks.models.lock import Lock, LockWaiter
from tasks.models.run import BulkRun, CommandRun, ExpectedCommand, Intervention, SubmittedForm
from tasks.models.task import (
    FINISHED,
    HIGHEST_VERSION,
    HOLDS_ITS_KEY,
    ONE_PER_KEY,
    Attempt,
    Queue,
    RefusedWrite,
    Task,
    TaskQuerySet,
    TaskStatus,
)
from tasks.models.throughput import Throughput, ThroughputSlot, ThroughputTotal
from tasks.models.worker import Epoch, RecoveryFailure, Worker, WorkerQuerySet

__all__ = [
    "FINISHED",
    "HIGHEST_VERSION",
    "HOLDS_ITS_KEY",
    "ONE_PER_KEY",
    "Attempt",
    "BulkRun",
    "CommandRun",
    "Epoch",
    "ExpectedCommand",
    "Intervention",
    "Lock",
    "LockWaiter",
    "Queue",
    "RecoveryFailure",
    "RefusedWrite",
    "SubmittedForm",
    "Task",
    "TaskQuerySet",
    "TaskStatus",
    "Throughput",
    "ThroughputSlot",
    "ThroughputTotal",
    "Worker",
    "WorkerQuerySet",
]
