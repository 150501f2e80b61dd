"""The queue in the admin, and `LockAwareAdmin` for any other model."""

from tasks.admin import history_admin, queue_admin, task_admin  # noqa: F401  register their models
from tasks.admin.lock_aware import LockAwareAdmin

__all__ = ["LockAwareAdmin"]
