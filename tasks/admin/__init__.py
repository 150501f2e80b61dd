"""The queue in the admin, and base classes for the admin of other models."""

from tasks.admin import read_only  # noqa: F401  registers its lists
from tasks.admin.lock_aware import LockAwareAdmin
from tasks.admin.pattern_admin import PatternAdmin

__all__ = ["LockAwareAdmin", "PatternAdmin"]
