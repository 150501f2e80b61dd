"""The Django app of the queue; registers the tasks of every installed app and the system checks."""

import logging
from pathlib import Path

from django.apps import AppConfig, apps
from django.core.checks import register

FRAMEWORK_LOGGERS = ("django_tasks", "django.tasks")  # they log each failure with its exception


HOME = Path(__file__).resolve().parent.parent  # the parent folder of our apps


def is_ours(label: str) -> bool:
    """True if the installed app of this name is Rowlock's: another package may have the name."""
    return apps.is_installed(label) and Path(apps.get_app_config(label).path).resolve().parent == HOME


class TasksConfig(AppConfig):
    name = "tasks"
    verbose_name = "Task queue"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django.utils.module_loading import autodiscover_modules

        from tasks import checks, compat
        from tasks.support import redaction

        if not compat.TASKS_IN_DJANGO and not apps.is_installed(compat.FRAMEWORK):
            register(checks.check_backends)  # as that app would
        autodiscover_modules("tasks")
        # After the apps' own filters, which may need the exception that this one removes.
        for name in FRAMEWORK_LOGGERS:
            logging.getLogger(name).addFilter(redaction.RedactedTraceback())
