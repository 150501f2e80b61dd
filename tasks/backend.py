"""The backend of Django's Tasks framework that stores tasks in PostgreSQL."""

import logging
import re
from typing import Any

from django.core.checks import CheckMessage

from tasks import checks
from tasks.compat import FRAMEWORK, BaseTaskBackend, Task, TaskResult, TaskResultDoesNotExist, task_enqueued
from tasks.exceptions import PayloadLocked, UnknownTask
from tasks.framework import declaration, results
from tasks.framework.arguments import Calls, Enqueued, Inserted, encode_call
from tasks.framework.declaration import PostgresTask
from tasks.framework.enqueue import insert_many, insert_one
from tasks.models import Task as TaskRow

ROW_ID = re.compile(r"[1-9][0-9]{0,18}")


class PostgresBackend(BaseTaskBackend):
    """Tasks as rows of `tasks_task`, enqueued in the caller's own transaction."""

    task_class = PostgresTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        # Without QUEUES every queue name is valid, because operators may move tasks between queues.
        self.queues = set(params.get("QUEUES", ()))

    def validate_task(self, task: Task) -> None:
        """Raise InvalidTask for a task that could not be stored or run."""
        declaration.validate(task)
        super().validate_task(task)

    def enqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
        """Write one task in the caller's transaction, or return the task that has its unique key.

        Raises InvalidTask, InvalidArguments (a ValueError and TypeError), or KeyBusy; then nothing is enqueued.
        """
        self.validate_task(task)
        row = insert_one(PostgresTask.of(task), encode_call(args, kwargs))
        return self._announce(task, row) if row.is_new else self._known(task, row)

    def enqueue_many(self, task: Task, calls: Calls) -> Enqueued:
        """Write one task for each `(args, kwargs)`, all or none; returns their ids, in the order of the calls.

        `calls` may be a generator: one statement writes some thousands of tasks, and only these are held in memory.
        With `ordered_by_commit`, all are. Each task computes its own ordering key if it declares a callable.
        `task_enqueued` is sent for each new task if it has receivers. Raises InvalidTask, KeyBusy, or InvalidArguments
        that names the call by its position from 0.
        """
        self.validate_task(task)
        announce = (lambda row: self._announce(task, row)) if somebody_listens() else None
        return insert_many(PostgresTask.of(task), calls, announce)

    def get_result(self, result_id: str) -> TaskResult:
        """The result of a task by its id.

        Raises TaskResultDoesNotExist for unknown and malformed ids, and PayloadLocked without the key that opens it.
        """
        result_id = str(result_id)
        row = TaskRow.objects.filter(pk=result_id).first() if ROW_ID.fullmatch(result_id) else None
        if row is None:
            raise TaskResultDoesNotExist(result_id)
        return results.result_of(row, backend=self.alias)

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """Check this backend's configuration for `manage.py check`, without a query."""
        return checks.check_backend(self.alias, self.options)

    def _known(self, task: Task, row: Inserted) -> TaskResult:
        """The result of the task that has the key. Another program may have pruned it, or alone know how to read it."""
        try:
            return self.get_result(str(row.id))
        except (TaskResultDoesNotExist, UnknownTask, PayloadLocked):
            return results.enqueued_result(task, row, backend=self.alias)

    def _announce(self, task: Task, row: Inserted) -> TaskResult:
        result = results.enqueued_result(task, row, backend=self.alias)
        task_enqueued.send(type(self), task_result=result)
        return result


def somebody_listens() -> bool:
    """True if `task_enqueued` has receivers besides the framework's own, which logs at DEBUG."""
    return len(task_enqueued.receivers) > 1 or logging.getLogger(FRAMEWORK).isEnabledFor(logging.DEBUG)
