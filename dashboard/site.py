"""Our AdminSite: the stock admin under one row of links to the pages that operators use."""

from typing import Any, NamedTuple

from django.contrib.admin import AdminSite
from django.http import HttpRequest
from django.urls import URLPattern, URLResolver, path, reverse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _


class Page(NamedTuple):
    """One link of the navigation: its words, the name of its address, and the right that opens it (none: any login)."""

    label: Promise
    url_name: str
    permission: str = ""


PAGES = (
    Page(_("Tasks"), "admin:tasks_task_changelist", "tasks.view_task"),
    Page(_("Database locks"), "admin:ops_locks", "dashboard.view_backend"),
    Page(_("Orders"), "admin:orders_order_changelist", "orders.view_order"),
    Page(_("Accounts"), "admin:orders_account_changelist", "orders.view_account"),
    Page(_("Queues"), "admin:tasks_queue_changelist", "tasks.view_queue"),
    Page(_("Workers"), "admin:tasks_worker_changelist", "tasks.view_worker"),
    Page(_("Cron & named locks"), "admin:ops_schedule", "tasks.view_commandrun"),
    Page(_("Audit"), "admin:tasks_intervention_changelist", "tasks.view_intervention"),
    Page(_("All models"), "admin:index"),
)


class RowlockAdminSite(AdminSite):
    site_header = site_title = "Rowlock"
    index_title = _("All models")
    site_url = None
    enable_nav_sidebar = False

    def get_urls(self) -> list[URLPattern | URLResolver]:
        """The operators' pages before the stock ones, whose last pattern catches everything."""
        from dashboard.views import locks, schedule  # rendering needs the apps to be loaded

        operators = [
            path("ops/locks/", self.admin_view(locks.locks), name="ops_locks"),
            path("ops/locks/signal/", self.admin_view(locks.signal), name="ops_signal"),
            path("ops/schedule/", self.admin_view(schedule.schedule), name="ops_schedule"),
            path("ops/schedule/release/", self.admin_view(schedule.release), name="ops_release"),
            path("ops/schedule/forget/", self.admin_view(schedule.forget), name="ops_forget"),
            path("ops/schedule/<int:run_id>/", self.admin_view(schedule.run), name="ops_command_run"),
        ]
        return operators + super().get_urls()

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        """The stock context with `navigation`: label, url and whether it is the page in hand."""
        return {**super().each_context(request), "navigation": self.navigation(request)}

    def navigation(self, request: HttpRequest) -> list[dict[str, Any]]:
        """The pages that this person may open."""
        links = []
        for page in PAGES:
            if not page.permission or request.user.has_perm(page.permission):
                url = reverse(page.url_name)
                here = request.path == url or (bool(page.permission) and request.path.startswith(url))
                links.append({"label": page.label, "url": url, "is_current": here})
        return links
