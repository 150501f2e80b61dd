"""Locking primitives that work on any model, without our worker and our tables."""

from tasks.locking.double_checked import double_checked
from tasks.locking.lock import lock
from tasks.locking.optimistic import VersionedModel, update_if_unchanged
from tasks.locking.version_trigger import VersionTrigger

__all__ = ["VersionTrigger", "VersionedModel", "double_checked", "lock", "update_if_unchanged"]
