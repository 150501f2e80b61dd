"""The backend of Django's Tasks framework that keeps its tasks in PostgreSQL."""

from typing import Any

from tasks.compat import BaseTaskBackend, TaskResult
from tasks.declaration import PostgresTask


class PostgresBackend(BaseTaskBackend):
    """Tasks as rows of `tasks_task`, enqueued in the caller's own transaction."""

    task_class = PostgresTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        # Without QUEUES every queue name is valid: operators move tasks between queues as they see fit.
        self.queues = set(params.get("QUEUES", ()))

    def enqueue(self, task: PostgresTask, args: Any, kwargs: Any) -> TaskResult:
        raise NotImplementedError
