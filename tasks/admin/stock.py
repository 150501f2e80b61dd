"""Read-only lists of the stock admin, for a project that installs `tasks` without its pages.

Arguments and return values are left out, because ROWLOCK_REDACT applies here too.
"""

from django.contrib import admin

from tasks.admin.read_only import ReadOnlyAdmin
from tasks.models import Queue, Task


@admin.register(Task)
class StockTaskAdmin(ReadOnlyAdmin):
    list_display = ("id", "task_path", "queue_name", "status", "priority", "attempt", "run_after")
    list_filter = ("status",)
    ordering = ("-id",)
    search_fields = ("=id", "=task_path")
    exclude = ("args", "kwargs", "return_value")


@admin.register(Queue)
class StockQueueAdmin(ReadOnlyAdmin):
    list_display = ("name", "paused", "recovery")
