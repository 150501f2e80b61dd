"""The layout that all pages share: the menu, the context of the site, and how a page or an error is rendered."""

from typing import Any

from django.contrib import admin
from django.contrib.admin import AdminSite
from django.contrib.admin.sites import all_sites
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.response import TemplateResponse
from django.utils.translation import gettext_lazy as _

from tasks import panels
from tasks.panels import Page
from tasks.support import addresses

FLEET = "admin:ops_fleet"  # in the menu only where there is one
FIRST_PAGES = (
    Page(_("Overview"), "admin:index", "", "o"),
    Page(_("Stuck"), "admin:ops_stale", "tasks.view_task", "s", "stuck"),
    Page(_("Tasks"), "admin:tasks_task_changelist", "tasks.view_task", "t"),
    Page(_("Failures"), "admin:ops_failures", "tasks.view_task", "f", "failures"),
    Page(_("Database locks"), "admin:ops_locks", "dashboard.view_backend", "d", "blocked"),
)
LAST_PAGES = (
    Page(_("Queues"), "admin:tasks_queue_changelist", "tasks.view_queue", "q"),
    Page(_("Limits"), "admin:ops_limits", "tasks.view_limit", "i"),
    Page(_("Workers"), "admin:ops_workers", "tasks.view_worker", "w"),
    Page(_("Schedules"), "admin:ops_schedule", "tasks.view_commandrun", "c"),
    Page(_("Fleet"), FLEET, "dashboard.view_installation", "e"),
    Page(_("Lab"), "admin:ops_lab", "dashboard.view_labrun", "l"),
    Page(_("Audit"), "admin:ops_audit", "tasks.view_intervention", "a"),
    Page(_("All models"), "admin:models", "", "m"),
)


def pages() -> list[Page]:
    """The links of the menu, with those of other apps in the middle."""
    panels.load()
    return [*FIRST_PAGES, *panels.PAGES, *LAST_PAGES]


def site_of(request: HttpRequest) -> AdminSite:
    """The admin site that answers this request; outside of its pages the one that has ours."""
    name = getattr(request, "current_app", None) or addresses.site()
    return next((site for site in all_sites if site.name == name), admin.site)


def site_context(request: HttpRequest) -> dict[str, Any]:
    """The context that every page of the site has."""
    return site_of(request).each_context(request)


def page(
    request: HttpRequest, template: str, title: str, context: dict[str, Any], status: int = 200
) -> TemplateResponse:
    """Render a page in the site's layout; a `title` in the context comes before the usual one."""
    common = {**site_context(request), "title": title}
    return TemplateResponse(request, template, {**common, **context}, status=status)


def error_page(request: HttpRequest, template: str, context: dict[str, Any], status: int) -> HttpResponse:
    """Render an error with the menu of those who are logged in. Raises DatabaseError if the menu cannot be read.

    An error before the login is known has no `request.user`.
    """
    site = site_context(request) if hasattr(request, "user") else {}
    return render(request, template, {**site, **context}, status=status)
