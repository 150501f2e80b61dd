"""Locking primitives that work on any model, without our worker and our tables."""

from tasks.locking.version_trigger import VersionTrigger

__all__ = ["VersionTrigger"]
