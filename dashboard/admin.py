"""Models in the admin: our pages of tasks and queues, and lists of users and groups with only declared filters."""

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django.urls import URLPattern, path

from dashboard import links
from dashboard.task_pages import bulk, detail, enqueue, listing, queues, saved_views
from tasks.admin.lock_aware import SESSION_PAGES
from tasks.admin.read_only import DeclaredFilters, QueueAdmin, TaskAdmin
from tasks.models import Queue, Task


class TaskPages(TaskAdmin):
    """Our pages in place of the plain list. Programs create tasks and `tasks.operations` changes them."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("", view(listing.list_view), name="tasks_task_changelist"),
            path("do/<slug:name>/", view(bulk.chosen_view), name="tasks_task_action"),
            path("all/<slug:name>/", view(bulk.all_view), name="tasks_task_all"),
            path("views/save/", view(saved_views.save_view), name="tasks_task_save_view"),
            path("views/delete/", view(saved_views.delete_view), name="tasks_task_delete_view"),
            path("runs/", view(bulk.runs_view), name="tasks_task_runs"),
            path("runs/<int:run_id>/", view(bulk.run_view), name="tasks_task_run"),
            path("runs/<int:run_id>/stop/", view(bulk.stop_view), name="tasks_task_run_stop"),
            path("why/<path:queue_name>/", view(queues.why_view), name="tasks_task_why"),
            path("enqueue/", view(enqueue.enqueue_view), name="tasks_task_enqueue"),
            path("<int:task_id>/", view(detail.detail_view), name="tasks_task_change"),
        ]


class QueuePages(QueueAdmin):
    """Every queue with a task, a setting or a worker, also without a row."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("", view(queues.queues_view), name="tasks_queue_changelist"),
            path("do/<slug:name>/", view(queues.switch_view), name="tasks_queue_switch"),
        ]


class PersonAdmin(DeclaredFilters, UserAdmin):
    pass


class PeopleAdmin(DeclaredFilters, GroupAdmin):
    pass


def lock_page(pid: int) -> str:
    """The session in the lock tree; empty if this site has no such page."""
    page = links.page("admin:ops_locks")
    return f"{page}#node-{pid}" if page else ""


SESSION_PAGES.append(lock_page)

# Pages that the project has registered itself are kept.
for model, stock, ours in (
    (Task, TaskAdmin, TaskPages),
    (Queue, QueueAdmin, QueuePages),
    (User, UserAdmin, PersonAdmin),
    (Group, GroupAdmin, PeopleAdmin),
):
    if admin.site.is_registered(model) and type(admin.site.get_model_admin(model)) is stock:
        admin.site.unregister(model)
        admin.site.register(model, ours)
