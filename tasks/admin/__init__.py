"""The queue in the admin, and base classes for the admin of other models."""

from django.apps import apps

from tasks.admin import history_admin  # noqa: F401  registers its models
from tasks.admin.lock_aware import LockAwareAdmin
from tasks.admin.pattern_admin import PatternAdmin

# The project's templates render the pages of tasks and queues; `tasks` alone has no such templates.
if apps.is_installed("dashboard"):
    from tasks.admin import queue_admin, task_admin  # noqa: F401
else:
    from tasks.admin import stock  # noqa: F401

__all__ = ["LockAwareAdmin", "PatternAdmin"]
