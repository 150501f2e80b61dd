"""Models in the admin: our pages of tasks and queues, and lists of users and groups with only declared filters."""

from django.contrib import admin
from django.contrib.admin import AdminSite
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django.urls import URLPattern, path

from dashboard import links
from dashboard.api.admin import ApiTokenAdmin
from dashboard.fleet.admin import InstallationAdmin
from dashboard.models import ApiToken, Installation
from tasks.admin.lock_aware import SESSION_PAGES
from tasks.admin.read_only import (
    AttemptAdmin,
    DeclaredFilters,
    InterventionAdmin,
    QueueAdmin,
    RefusedWriteAdmin,
    TaskAdmin,
    WorkerAdmin,
)
from tasks.models import Attempt, Intervention, Queue, RefusedWrite, Task, Worker


class TaskPages(TaskAdmin):
    """Our pages in place of the plain list. Programs create tasks and `tasks.operations` changes them."""

    def get_urls(self) -> list[URLPattern]:
        """Commands import the admin too, but not its pages."""
        from dashboard.task_pages import archive, bulk, detail, enqueue, listing, queues, saved_views

        view = self.admin_site.page_view  # type: ignore[attr-defined]  # only our sites have these pages
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
            path("archive/", view(archive.list_view), name="tasks_task_archive"),
            path("enqueue/", view(enqueue.enqueue_view), name="tasks_task_enqueue"),
            path("<int:task_id>/again/", view(archive.again_view), name="tasks_task_again"),
            path("<int:task_id>/", view(detail.detail_view), name="tasks_task_change"),
        ]


class QueuePages(QueueAdmin):
    """Every queue with a task, a setting or a worker, also without a row."""

    def get_urls(self) -> list[URLPattern]:
        from dashboard.task_pages import queues

        view = self.admin_site.page_view  # type: ignore[attr-defined]  # only our sites have these pages
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

# Tables of ours without pages, as `tasks.admin` registers them at the default site.
LISTS = {
    Worker: WorkerAdmin,
    Attempt: AttemptAdmin,
    RefusedWrite: RefusedWriteAdmin,
    Intervention: InterventionAdmin,
    ApiToken: ApiTokenAdmin,
    Installation: InstallationAdmin,
}
PAGES = {Task: TaskPages, Queue: QueuePages}
PEOPLE = {User: PersonAdmin, Group: PeopleAdmin}
STOCK = (TaskAdmin, QueueAdmin, UserAdmin, GroupAdmin)


def register_pages(site: AdminSite) -> None:
    """Register our tables at this site. Pages that the project has registered itself are kept."""
    people = PEOPLE if site.has_people else {}  # type: ignore[attr-defined]  # only our sites have these pages
    for model, ours in (LISTS | PAGES | people).items():
        if not site.is_registered(model):
            if model not in PEOPLE:
                site.register(model, ours)
        elif type(site.get_model_admin(model)) in STOCK:
            site.unregister(model)
            site.register(model, ours)


if hasattr(admin.site, "page_view"):  # only our sites have it
    register_pages(admin.site)
