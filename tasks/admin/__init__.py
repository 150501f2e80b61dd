"""The queue in the admin, and what any other model's admin can take from it."""

from tasks.admin import history_admin, queue_admin, task_admin  # noqa: F401  register their models
from tasks.admin.lock_aware import LockAwareAdmin
from tasks.admin.pattern_admin import PatternAdmin

__all__ = ["LockAwareAdmin", "PatternAdmin"]
