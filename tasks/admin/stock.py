"""The queue in a project that installs `tasks` without the pages: lists of the stock admin, to look at.

Arguments and return values are left out: what ROWLOCK_REDACT names must not be shown here either.
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
