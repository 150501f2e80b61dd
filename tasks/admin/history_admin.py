"""Read-only pages of the history: workers, attempts, refused late writes, interventions."""

from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from tasks.admin.read_only import ReadOnlyAdmin
from tasks.models import Attempt, Intervention, RefusedWrite, Worker
from tasks.queue import presence
from tasks.support.addresses import address
from tasks.support.durations import spoken


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
    list_display = (
        "id",
        "hostname",
        "pid_text",
        "life",
        "heartbeat",
        "current_task",
        "served",
        "started_at",
        "stop_reason",
    )
    ordering = ("-started_at",)
    search_fields = ("id", "hostname")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return WorkerList

    @admin.display(description=_("pid"))
    def pid_text(self, worker: Worker) -> str:
        return str(worker.pid)

    @admin.display(description=_("life"))
    def life(self, worker: Any) -> str:
        return str(worker.state.life)

    @admin.display(description=_("last heard"))
    def heartbeat(self, worker: Any) -> str:
        return spoken(worker.state.heartbeat_age_seconds)

    @admin.display(description=_("current task"))
    def current_task(self, worker: Worker) -> str:
        return task_link(worker.current_task_id)

    @admin.display(description=_("queues"))
    def served(self, worker: Worker) -> str:
        return ", ".join(worker.queues) or str(_("every queue"))


@admin.register(Attempt)
class AttemptAdmin(ReadOnlyAdmin):
    list_display = ("id", "of_task", "number", "outcome", "exception_class", "worker_id", "finished_at")
    ordering = ("-id",)
    search_fields = ("=task__id",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Attempt]:
        return super().get_queryset(request).defer("traceback")

    @admin.display(description=_("task"))
    def of_task(self, attempt: Attempt) -> str:
        return task_link(attempt.task_id)


@admin.register(RefusedWrite)
class RefusedWriteAdmin(ReadOnlyAdmin):
    list_display = ("id", "of_task", "worker_id", "intent", "expected_version", "actual_version", "at")
    ordering = ("-id",)
    search_fields = ("=task_id",)

    @admin.display(description=_("task"))
    def of_task(self, refused: RefusedWrite) -> str:
        return task_link(refused.task_id)


@admin.register(Intervention)
class InterventionAdmin(ReadOnlyAdmin):
    list_display = ("at", "actor", "source", "action", "target", "version_before", "version_after", "reason", "role")
    ordering = ("-id",)
    search_fields = ("=target", "=actor")


def task_link(task_id: int | None) -> str:
    """A link to the task's page, or an empty text."""
    if task_id is None:
        return ""
    return format_html('<a href="{}">#{}</a>', address("admin:tasks_task_change", task_id), str(task_id))
