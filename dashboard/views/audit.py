"""Audit: who did what to which row, when and why."""

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from dashboard import audit_trail
from dashboard.audit_trail import AuditFilter
from dashboard.live.fragment import SharedPart
from dashboard.task_pages.listing import PageCursor, neighbours
from tasks.admin.rights import require
from tasks.operations.filters import InvalidFilter

SEE = "tasks.view_intervention"
EVERY_SECONDS = 5


def paths(view: Callable[..., Any]) -> list[URLPattern]:
    return [path("ops/audit/", view(audit), name="ops_audit")]


@require_safe
def audit(request: HttpRequest) -> HttpResponse:
    """The page; for htmx only its live fragment."""
    require(request.user, SEE)
    context = {**admin.site.each_context(request), "title": _("Audit"), "every": EVERY_SECONDS}
    try:
        chosen, place = AuditFilter.from_params(request.GET), PageCursor.from_params(request.GET)
    except InvalidFilter as error:
        context |= {"fault": str(error), "chosen": AuditFilter(), "recent": audit_trail.recent()}
        return render(request, "dashboard/audit.html", context, status=400)

    def found(_request: HttpRequest) -> dict[str, Any]:
        return entries(chosen, place)

    live = SharedPart("dashboard/_audit.html", found, every=EVERY_SECONDS, is_apart=True)
    if "HX-Request" in request.headers:
        return live.answer(request)
    context |= {"recent": audit_trail.recent(), **entries(chosen, place)}
    if context["is_live"]:
        live.expect(request)
    return render(request, "dashboard/audit.html", context)


def entries(chosen: AuditFilter, place: PageCursor) -> dict[str, Any]:
    """One page of interventions. It refreshes only if an index finds the matches."""
    listing, here = audit_trail.look(chosen, place), audit_trail.here()
    return {
        "chosen": chosen,
        "listing": listing,
        "entries": listing.rows,
        "links": neighbours(chosen, listing),
        "now": here.now,
        "our_role": here.role,
        "is_live": place == PageCursor() and chosen.is_quick,
    }
