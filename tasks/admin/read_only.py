"""Read-only lists of the queue's tables, for any project: no full counts and no expensive lookups."""

import json
from collections.abc import Callable
from typing import Any, cast

from django.contrib import admin
from django.contrib.admin import FieldListFilter
from django.contrib.admin.utils import get_fields_from_path
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from tasks.diagnosis.finding import ending_of
from tasks.models import Attempt, Intervention, Queue, RefusedWrite, Task, Worker
from tasks.queue import presence
from tasks.support.addresses import address
from tasks.support.durations import spoken

COUNT_CAP = 10_000


def estimate(rows: "QuerySet[Any]") -> int:
    """The planner's estimate of the number of rows, at once however many there are."""
    plan = json.loads(rows.order_by().explain(format="json"))
    return int(plan[0]["Plan"]["Plan Rows"])


class CappedPaginator(Paginator):
    """Counts at most COUNT_CAP rows; search reaches the rows beyond."""

    @cached_property
    def count(self) -> int:
        rows = cast("QuerySet[Any]", self.object_list)
        return rows.order_by()[:COUNT_CAP].count()

    @property
    def is_capped(self) -> bool:
        """True if there may be more rows than were counted."""
        return self.count >= COUNT_CAP


class DeclaredFilters(admin.ModelAdmin):
    """A list whose URL accepts only the filters of `list_filter` and exact ids, else 400.

    Django accepts every lookup of every column: a regular expression kept the database busy for five seconds.
    """

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        is_text = "\0" not in str(value)  # PostgreSQL's text cannot hold NUL
        return is_text and (lookup in self._exact_ids() or lookup in self._declared(request))

    def _exact_ids(self) -> set[str]:
        keys: list[Any] = [field for field in self.opts.concrete_fields if field.primary_key or field.remote_field]
        names = {"pk", *(name for key in keys for name in (key.name, key.attname))}
        names |= {f"{key.name}__{key.target_field.name}" for key in keys if key.remote_field}
        return names | {f"{name}__exact" for name in names}

    def _declared(self, request: Any) -> set[str]:
        dates = {f"{self.date_hierarchy}__{part}" for part in ("year", "month", "day") if self.date_hierarchy}
        return dates | {name for item in self.get_list_filter(request) for name in self._parameters(request, item)}

    def _parameters(self, request: HttpRequest, item: Any) -> list[Any]:
        if callable(item):
            return cast("list[Any]", item(request, {}, self.model, self).expected_parameters())
        path, create = item if isinstance(item, list | tuple) else (item, FieldListFilter.create)
        field = get_fields_from_path(self.model, path)[-1]
        return cast("list[Any]", create(field, request, {}, self.model, self, field_path=path).expected_parameters())


class ReadOnlyAdmin(DeclaredFilters):
    """A list and a page for each row, without any change."""

    paginator = CappedPaginator
    show_full_result_count = False
    list_per_page = 50
    actions = None

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    has_change_permission = has_delete_permission = has_add_permission


def column(label: Any, text: Callable[[Any], Any], ordering: str | None = None) -> Callable[[Any, Any], Any]:
    """A computed column of a list."""
    return admin.display(description=label, ordering=ordering)(lambda _admin, row: text(row))


def task_link(task_id: int | None) -> str:
    """A link to the task's page, or an empty text."""
    if task_id is None:
        return ""
    return format_html('<a href="{}">#{}</a>', address("admin:tasks_task_change", task_id), str(task_id))


@admin.register(Task)
class TaskAdmin(ReadOnlyAdmin):
    """Without arguments and return values, because ROWLOCK_REDACT applies here too."""

    list_display = ("id", "task_path", "queue_name", "status", "priority", "attempt", "run_after")
    list_filter = ("status",)
    ordering = ("-id",)
    search_fields = ("=id", "=task_path")
    exclude = ("args", "kwargs", "return_value")


@admin.register(Queue)
class QueueAdmin(ReadOnlyAdmin):
    list_display = ("name", "paused", "recovery")


class WorkerList(ChangeList):
    """The list of workers, each with its state, read once for the whole page."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = list(self.result_list)
        states = presence.states([worker.pk for worker in self.result_list])
        for worker in self.result_list:
            worker.state = states[worker.pk]


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    list_display = ("id", "hostname", "pid_text", "life", "heartbeat", "task", "served", "started_at", "ending")
    ordering = ("-started_at",)
    search_fields = ("id", "hostname")

    pid_text = column(_("pid"), lambda worker: str(worker.pid))
    life = column(_("status"), lambda worker: str(worker.state.life))
    heartbeat = column(_("last heartbeat"), lambda worker: spoken(worker.state.heartbeat_age_seconds))
    task = column(_("current task"), lambda worker: task_link(worker.current_task_id))
    ending = column(_("reason of its end"), lambda worker: ending_of(worker.stop_reason), ordering="stop_reason")
    served = column(_("queues"), lambda worker: ", ".join(worker.queues) or str(_("every queue")))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return WorkerList


@admin.register(Attempt)
class AttemptAdmin(ReadOnlyAdmin):
    list_display = ("id", "of_task", "number", "outcome", "exception_class", "worker_id", "finished_at")
    ordering = ("-id",)
    search_fields = ("=task__id",)
    of_task = column(_("task"), lambda row: task_link(row.task_id))

    def get_queryset(self, request: HttpRequest) -> QuerySet[Attempt]:
        return super().get_queryset(request).defer("traceback")


@admin.register(RefusedWrite)
class RefusedWriteAdmin(ReadOnlyAdmin):
    list_display = ("id", "of_task", "worker_id", "intent", "expected_version", "actual_version", "at")
    ordering = ("-id",)
    search_fields = ("=task_id",)
    of_task = column(_("task"), lambda row: task_link(row.task_id))


@admin.register(Intervention)
class InterventionAdmin(ReadOnlyAdmin):
    list_display = ("at", "actor", "source", "action", "target", "version_before", "version_after", "reason", "role")
    ordering = ("-id",)
    search_fields = ("=target", "=actor")
