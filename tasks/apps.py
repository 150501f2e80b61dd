"""The Django app of the queue; registers the tasks of every installed app and the system checks."""

import logging

from django.apps import AppConfig, apps
from django.core.checks import register

FRAMEWORK_LOGGERS = ("django_tasks", "django.tasks")  # they log each failure with its exception


class TasksConfig(AppConfig):
    name = "tasks"
    verbose_name = "Task queue"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django.utils.module_loading import autodiscover_modules

        from tasks import checks, compat
        from tasks.framework import redacted_calls

        if not compat.TASKS_IN_DJANGO and not apps.is_installed(compat.FRAMEWORK):
            register(checks.check_backends)  # as that app would
        autodiscover_modules("tasks")
        # After the apps' own filters, which may need the exception that this one removes.
        for name in FRAMEWORK_LOGGERS:
            logging.getLogger(name).addFilter(redacted_calls.RedactedTraceback())
