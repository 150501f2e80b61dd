"""Imports that depend on Django's version: `django.tasks` (6.0) or its backport `django_tasks` (5.2)."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import django

TASKS_IN_DJANGO = django.VERSION >= (6, 0)
TASKS_TAKE_OPTIONS = django.VERSION >= (6, 1)
CSP_IN_DJANGO = django.VERSION >= (6, 0)
MAILERS_IN_DJANGO = django.VERSION >= (6, 1)

# Type checkers always read Django 6: one set of names, which the backport follows.
if TYPE_CHECKING or TASKS_IN_DJANGO:
    from django.tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskError
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
    from django.tasks.signals import log_task_finished, log_task_started, task_enqueued, task_finished, task_started

    FRAMEWORK = "django.tasks"
else:
    from django_tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskError
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
    from django_tasks.signals import log_task_finished, log_task_started, task_enqueued, task_finished, task_started

    FRAMEWORK = "django_tasks"

if TYPE_CHECKING or TASKS_TAKE_OPTIONS:
    from django.tasks import task
elif TASKS_IN_DJANGO:
    from django.tasks import DEFAULT_TASK_BACKEND_ALIAS, DEFAULT_TASK_QUEUE_NAME
    from django.tasks.base import DEFAULT_TASK_PRIORITY

    def task(
        function: Callable[..., Any] | None = None,
        *,
        priority: int = DEFAULT_TASK_PRIORITY,
        queue_name: str = DEFAULT_TASK_QUEUE_NAME,
        backend: str = DEFAULT_TASK_BACKEND_ALIAS,
        **options: Any,
    ) -> Any:
        """Declare a task as Django 6.1 does: 6.0's own decorator refuses the options of a backend's task class."""

        def declare(function: Callable[..., Any]) -> Any:
            declared = {"priority": priority, "queue_name": queue_name, "backend": backend, **options}
            return task_backends[backend].task_class(func=function, run_after=None, **declared)

        return declare(function) if function else declare
else:
    from django_tasks import task

# A new instance of the default e-mail backend.
if MAILERS_IN_DJANGO and not TYPE_CHECKING:
    from django.core.mail import mailers

    def mail_backend() -> Any:
        return mailers.default
else:
    from django.core.mail import get_connection as mail_backend

__all__ = [
    "CSP_IN_DJANGO",
    "FRAMEWORK",
    "MAILERS_IN_DJANGO",
    "TASKS_IN_DJANGO",
    "BaseTaskBackend",
    "InvalidTask",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultMismatch",
    "TaskResultStatus",
    "log_task_finished",
    "log_task_started",
    "mail_backend",
    "task",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]
