"""The queue in the admin, and what any other model's admin can take from it."""

from django.apps import apps

from tasks.admin import history_admin  # noqa: F401  registers its models
from tasks.admin.lock_aware import LockAwareAdmin
from tasks.admin.pattern_admin import PatternAdmin

# The pages of tasks and queues are rendered by templates of the project; who installs `tasks` alone has none.
if apps.is_installed("dashboard"):
    from tasks.admin import queue_admin, task_admin  # noqa: F401
else:
    from tasks.admin import stock  # noqa: F401

__all__ = ["LockAwareAdmin", "PatternAdmin"]
