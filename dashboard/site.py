"""Our AdminSite: the stock admin under one row of links to the pages that operators use."""

from typing import Any, NamedTuple

from django.contrib.admin import AdminSite
from django.http import HttpRequest
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _


class Page(NamedTuple):
    """One link of the navigation: its words, the name of its address, and the right that opens it (none: any login)."""

    label: Promise
    url_name: str
    permission: str = ""


PAGES = (
    Page(_("Tasks"), "admin:tasks_task_changelist", "tasks.view_task"),
    Page(_("Queues"), "admin:tasks_queue_changelist", "tasks.view_queue"),
    Page(_("Workers"), "admin:tasks_worker_changelist", "tasks.view_worker"),
    Page(_("Audit"), "admin:tasks_intervention_changelist", "tasks.view_intervention"),
    Page(_("All models"), "admin:index"),
)


class RowlockAdminSite(AdminSite):
    site_header = site_title = "Rowlock"
    index_title = _("All models")
    site_url = None
    enable_nav_sidebar = False

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
