"""Models in the admin: our pages of tasks and queues, and lists of users and groups with only declared filters."""

from itertools import chain

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django.urls import URLPattern

from dashboard import links
from dashboard.task_pages import bulk, confirmation, detail, enqueue, listing, queues
from tasks.admin.lock_aware import session_page
from tasks.admin.read_only import DeclaredFilters, QueueAdmin, TaskAdmin
from tasks.models import Queue, Task

TASK_PATHS = (listing.paths, confirmation.paths, bulk.paths, queues.why_paths, enqueue.paths, detail.paths)


class TaskPages(TaskAdmin):
    """Our pages in place of the plain list. Programs create tasks and `tasks.operations` changes them."""

    def get_urls(self) -> list[URLPattern]:
        return list(chain.from_iterable(paths(self.admin_site.admin_view) for paths in TASK_PATHS))


class QueuePages(QueueAdmin):
    """Every queue with a task, a setting or a worker, also without a row."""

    def get_urls(self) -> list[URLPattern]:
        return queues.paths(self.admin_site.admin_view)


class PersonAdmin(DeclaredFilters, UserAdmin):
    pass


class PeopleAdmin(DeclaredFilters, GroupAdmin):
    pass


@session_page
def lock_page(pid: int) -> str:
    """The session in the lock tree; empty if this site has no such page."""
    page = links.page("admin:ops_locks")
    return f"{page}#node-{pid}" if page else ""


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
