"""The Django app of the queue; registers the handlers of every installed app and the system checks."""

from django.apps import AppConfig


class TasksConfig(AppConfig):
    name = "tasks"
    verbose_name = "Task queue"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django.utils.module_loading import autodiscover_modules

        from tasks import checks  # noqa: F401  registers the system checks
        from tasks.actions.prune import register_history
        from tasks.bulk import history

        register_history(history.HISTORY)

        autodiscover_modules("tasks")
