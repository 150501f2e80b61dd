"""The queue in the admin."""

from tasks.admin import history_admin, queue_admin, task_admin  # noqa: F401  register their models
