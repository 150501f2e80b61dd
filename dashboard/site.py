"""Our AdminSite: the stock admin under one row of links to the operators' pages."""

import logging
from collections.abc import Callable
from functools import partial, wraps
from itertools import chain
from typing import Any, NamedTuple

from django.contrib import admin
from django.contrib.admin import AdminSite
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.response import TemplateResponse
from django.urls import Resolver404, URLPattern, URLResolver, path
from django.utils.functional import Promise, SimpleLazyObject
from django.utils.translation import gettext_lazy as _
from django.views.decorators.csrf import requires_csrf_token

from dashboard import middleware
from tasks.support.addresses import address
from tasks.support.reading import Unreadable

logger = logging.getLogger(__name__)


class Page(NamedTuple):
    """One link of the navigation.

    `permission`: needed to open it (empty: any login); `key`: opens it after `g`; `number`: the field of
    `Counts` (`dashboard.views.overview`) shown beside it.
    """

    label: Promise
    url_name: str
    permission: str = ""
    key: str = ""
    number: str = ""


PAGES = (
    Page(_("Overview"), "admin:index", "", "o"),
    Page(_("Stuck"), "admin:ops_stale", "tasks.view_task", "s", "stuck"),
    Page(_("Tasks"), "admin:tasks_task_changelist", "tasks.view_task", "t"),
    Page(_("Failures"), "admin:ops_failures", "tasks.view_task", "f", "failures"),
    Page(_("Database locks"), "admin:ops_locks", "dashboard.view_backend", "d", "blocked"),
    Page(_("Orders"), "admin:orders_order_changelist", "orders.view_order", "r"),
    Page(_("Accounts"), "admin:orders_account_changelist", "orders.view_account", "b"),
    Page(_("Queues"), "admin:tasks_queue_changelist", "tasks.view_queue", "q"),
    Page(_("Limits"), "admin:ops_limits", "tasks.view_limit", "i"),
    Page(_("Workers"), "admin:ops_workers", "tasks.view_worker", "w"),
    Page(_("Schedules"), "admin:ops_schedule", "tasks.view_commandrun", "c"),
    Page(_("Lab"), "admin:ops_lab", "dashboard.view_labrun", "l"),
    Page(_("Audit"), "admin:ops_audit", "tasks.view_intervention", "a"),
    Page(_("All models"), "admin:models", "", "m"),
)


def page(
    request: HttpRequest, template: str, title: str, context: dict[str, Any], status: int = 200
) -> TemplateResponse:
    """Render a page in the site's layout; a `title` in the context comes before the usual one."""
    common = {**admin.site.each_context(request), "title": title}
    return TemplateResponse(request, template, {**common, **context}, status=status)


def error_page(request: HttpRequest, template: str, context: dict[str, Any], status: int) -> HttpResponse:
    """Render an error with the menu of those who are logged in. Raises DatabaseError if the menu cannot be read.

    An error before the login is known has no `request.user`.
    """
    site = admin.site.each_context(request) if hasattr(request, "user") else {}
    return render(request, template, {**site, **context}, status=status)


@requires_csrf_token
def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    """The handler of 403."""
    return error_page(request, "403.html", {"exception": str(exception)}, status=403)


@requires_csrf_token
def page_not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """The handler of 404; an address that leads nowhere has no sentence of its own."""
    sentence = "" if isinstance(exception, Resolver404) else str(exception)
    return error_page(request, "404.html", {"exception": sentence}, status=404)


@requires_csrf_token
def server_error(request: HttpRequest) -> HttpResponse:
    """The handler of 500: without the menu if the menu fails too."""
    answer = middleware.server_error(request)
    if answer.status_code != 500:
        return answer
    try:
        return error_page(request, "500.html", {"layout": "admin/base_site.html"}, status=500)
    except Exception:
        logger.exception("The page of an error has no menu")
        return answer


class RowlockAdminSite(AdminSite):
    site_header = site_title = "Rowlock"
    index_title = _("All models")
    site_url = None
    enable_nav_sidebar = False

    def get_urls(self) -> list[URLPattern | URLResolver]:
        """The operators' pages come before the stock ones, whose last pattern catches everything.

        They need the apps, so they are imported here.
        """
        from dashboard.views import (
            audit,
            burst,
            demo,
            failures,
            lab,
            limits,
            locks,
            overview,
            palette,
            schedule,
            stale,
            workers,
        )

        modules = (audit, burst, demo, failures, lab, limits, locks, overview, palette, schedule, stale, workers)
        models = path("all/", self.admin_view(super().index), name="models")
        pages = [module.paths(self.admin_view) for module in modules]
        return [*chain.from_iterable(pages), models, *super().get_urls()]

    def index(  # type: ignore[override]  # its part, for htmx, is rendered already
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The overview, in place of the stock list of models."""
        from dashboard.views import overview

        return overview.overview(request)

    def admin_view(self, view: Callable[..., Any], cacheable: bool = False) -> Any:
        """Wrap every page: a reason, name or number that cannot be read is answered with 400 and an explanation."""

        @wraps(view)
        def explained(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            try:
                response: HttpResponse = view(request, *args, **kwargs)
            except Unreadable as problem:
                return error_page(request, "dashboard/unreadable.html", {"problem": str(problem)}, status=400)
            return response

        return super().admin_view(explained, cacheable)

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        """The stock context with `navigation`: label, url, key, and `is_current` for the open page.

        It is lazy: a fragment that refreshes has no navigation and needs no counts.
        """
        return {**super().each_context(request), "navigation": SimpleLazyObject(partial(self.navigation, request))}

    def navigation(self, request: HttpRequest) -> list[dict[str, Any]]:
        from dashboard.views.overview import counts_for

        pages = [page for page in PAGES if not page.permission or request.user.has_perm(page.permission)]
        numbers = counts_for(request) if any(page.number for page in pages) else None
        links = []
        for page in pages:
            url = address(page.url_name)
            here = request.path == url or (bool(page.permission) and request.path.startswith(url))
            found = getattr(numbers, page.number) if page.number else 0
            label = f"{page.label} ({found})" if found else page.label
            links.append({"label": label, "url": url, "key": page.key, "is_current": here})
        return links
