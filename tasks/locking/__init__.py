"""Locking primitives for any model, without our worker and our tables."""

from tasks.exceptions import LockCycle, LockHeld, LockLost, LockUnavailable, StaleVersion
from tasks.locking.batched import locked_batches
from tasks.locking.double_checked import around_each_row, double_checked
from tasks.locking.named.lock import lock
from tasks.locking.optimistic import VersionedModel, update_each, update_if_unchanged
from tasks.locking.report import Report
from tasks.locking.version_trigger import VersionTrigger

__all__ = [
    "LockCycle",
    "LockHeld",
    "LockLost",
    "LockUnavailable",
    "Report",
    "StaleVersion",
    "VersionTrigger",
    "VersionedModel",
    "around_each_row",
    "double_checked",
    "lock",
    "locked_batches",
    "update_each",
    "update_if_unchanged",
]
